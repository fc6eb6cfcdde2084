#!/usr/bin/env python3
"""Writes griffin.json and griffin/*.safetensors: a small RecurrentGemma of random weights by transformers in float64, its logits
of a sequence, which are also those of a prompt longer than the window and the steps after it, its loss and the gradients of
all weights.

    python3 make_griffin.py        (made with PyTorch 2.15, transformers 5.23)

transformers carries the recurrence in float32 whatever the type of the weights; here it is carried in theirs.
"""
import functools
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import DynamicCache, RecurrentGemmaConfig, RecurrentGemmaForCausalLM
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as source

torch.manual_seed(12)
B, T, PROMPT = 2, 13, 8
scan = source.RecurrentGemmaRglru._rnn_scan
source.RecurrentGemmaRglru._rnn_scan = functools.partialmethod(scan, acc_dtype=torch.float64)
# A width whose root is exact in bfloat16, in which transformers stores the factor of the embedding; no token for padding, whose
# gradient it would leave out.
config = RecurrentGemmaConfig(
    num_hidden_layers=4, vocab_size=19, pad_token_id=None, hidden_size=16, intermediate_size=2 * 3 * 16,
    num_attention_heads=2, num_key_value_heads=1, lru_width=16, attention_window_size=5, attn_implementation="eager")
model = RecurrentGemmaForCausalLM(config).double()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        parameter.copy_((0.3 * torch.randn_like(parameter)).float())
        if name.endswith("recurrent_param"):
            # From fast forgetting to slow.
            parameter.copy_(torch.linspace(1.0, -5.0, len(parameter)).float())
tokens = torch.randint(0, config.vocab_size, (B, T + 1))
logits = model(tokens[:, :-1], use_cache=False).logits
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
loss.backward()
with torch.no_grad():
    # The prompt at once and the rest one by one, with the cache.
    cache = DynamicCache(config=config)
    parts = [model(tokens[:, :PROMPT], use_cache=True, past_key_values=cache).logits]
    for t in range(PROMPT, T):
        parts.append(model(tokens[:, t:t + 1], use_cache=True, past_key_values=cache).logits)
    steps = torch.cat(parts, 1)
# So one list of logits stands for both.
assert (steps - logits).abs().max() < 1e-12
folder = pathlib.Path(__file__).with_name("griffin")
folder.mkdir(exist_ok=True)
weights = {name: p for name, p in model.named_parameters()}
save_file({name: p.detach().float().contiguous() for name, p in weights.items()}, folder / "weights.safetensors")
save_file({name: p.grad.float().contiguous() for name, p in weights.items()}, folder / "gradients.safetensors")
numbers = dict(batch=B, steps=T, prompt=PROMPT, vocab=config.vocab_size, width=config.hidden_size,
               layers=config.num_hidden_layers, heads=config.num_attention_heads, window=config.attention_window_size,
               tokens=tokens.flatten().tolist(), loss=loss.item(), parameters=model.num_parameters(),
               logits=[round(x, 7) for x in logits.flatten().tolist()])
pathlib.Path(__file__).with_name("griffin.json").write_text(json.dumps(numbers) + "\n")
