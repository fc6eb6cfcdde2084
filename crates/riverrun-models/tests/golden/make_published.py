#!/usr/bin/env python3
"""Writes published/*: small models of random weights as transformers saves them, with their logits, which are also those of a prompt
and the steps after it, their loss, and the gradients of all weights.

    python3 make_published.py        (made with PyTorch 2.15, transformers 5.24)

transformers computes recurrences in float32 whatever the type of the weights; here it computes in float64.
"""
import importlib
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import Mamba2Config, Mamba2ForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, xLSTMConfig, xLSTMForCausalLM

B, T, PROMPT, VOCAB = 2, 11, 6, 23


class Wide:
    """PyTorch with float64 in the place of float32."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


torch.Tensor.float = lambda self: self.double()
for name in ["qwen3_5.modeling_qwen3_5", "qwen3_next.modeling_qwen3_next", "mamba2.modeling_mamba2", "xlstm.modeling_xlstm"]:
    importlib.import_module(f"transformers.models.{name}").torch = Wide()
# Its cache has these rounded up to multiples of 64, which its layers do not have.
xLSTMConfig.qk_dim = property(lambda config: int(config.hidden_size * config.qk_dim_factor))
xLSTMConfig.v_dim = property(lambda config: int(config.hidden_size * config.v_dim_factor))

rope = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)
qwen = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
            linear_value_head_dim=4, layer_types=["linear_attention", "full_attention", "linear_attention"],
            rope_parameters=rope, attn_implementation="eager")
models = {
    "qwen3.5": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**qwen, tie_word_embeddings=True)),
    "qwen3-next": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(**qwen, mlp_only_layers=[0, 1, 2], tie_word_embeddings=False)),
    "mamba2": lambda: Mamba2ForCausalLM(Mamba2Config(
        vocab_size=VOCAB, hidden_size=16, num_heads=4, head_dim=8, state_size=8, num_hidden_layers=2, n_groups=2,
        pad_token_id=None, tie_word_embeddings=True, chunk_size=4)),
    # Two heads of 300 channels, and caps that change the numbers.
    "xlstm": lambda: xLSTMForCausalLM(xLSTMConfig(
        vocab_size=VOCAB, hidden_size=8, num_hidden_layers=2, num_heads=2, qk_dim_factor=1.0, v_dim_factor=75.0,
        ffn_proj_factor=2.667, ffn_round_up_to_multiple_of=8, norm_eps=1e-3, gate_soft_cap=3.0, output_logit_soft_cap=2.0,
        pad_token_id=None, chunk_size=4)),
}
root = pathlib.Path(__file__).with_name("published")
for seed, (name, make) in enumerate(models.items()):
    # Numbers of which PyTorch's own float32 gives these gradients to 5e-6.
    torch.manual_seed(40 + seed)
    model = make().double().eval()
    with torch.no_grad():
        for weight, parameter in model.named_parameters():
            scale = 0.1 if weight.endswith("A_log") else 2.0 if "gate_preact.bias" in weight else 0.3
            parameter.copy_((scale * torch.randn_like(parameter)).to(torch.float32))
    tokens = torch.randint(0, VOCAB, (B, T + 1))
    logits = model(tokens[:, :-1], use_cache=False).logits
    assert logits.dtype == torch.float64
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    with torch.no_grad():
        # The prompt at once and the rest one by one, with the cache.
        out = model(tokens[:, :PROMPT], use_cache=True)
        cache, parts = out.get("cache"), [out.logits]
        for t in range(PROMPT, T):
            parts.append(model(tokens[:, t:t + 1], use_cache=True, cache=cache).logits)
        steps = torch.cat(parts, 1)
    # So one list of logits stands for both.
    assert (steps - logits).abs().max() < 1e-12
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {weight: p for weight, p in model.named_parameters()}
    save_file({k: p.detach().to(torch.float32).contiguous() for k, p in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    save_file({k: p.grad.to(torch.float32).contiguous() for k, p in weights.items()}, folder / "gradients.safetensors")
    model.config.save_pretrained(folder)
    numbers = dict(batch=B, steps=T, prompt=PROMPT, tokens=tokens.flatten().tolist(), loss=loss.item(),
                   parameters=model.num_parameters(), logits=[round(x, 7) for x in logits.flatten().tolist()])
    for file in folder.iterdir():
        file.chmod(0o644)
    (folder / "expected.json").write_text(json.dumps(numbers) + "\n")
