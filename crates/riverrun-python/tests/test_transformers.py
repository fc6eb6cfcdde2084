"""Models of transformers on the kernels here, against their own operations."""

import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")

#: Without flash-linear-attention, which runs on GPUs alone, the models run PyTorch's operations.
MODEL = """
import sys
sys.modules["fla"] = None
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
import riverrun.torch as rt

config = Qwen3NextConfig(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    layer_types=["linear_attention", "full_attention"],
)
torch.manual_seed(0)
model = Qwen3NextForCausalLM(config).float()
"""

CHECK = """
def results():
    model.zero_grad()
    out = model(tokens, labels=tokens)
    out.loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [out.logits.detach(), *gradients]

tokens = torch.randint(0, 61, (2, 75))
"""


def run(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_model_that_exists():
    """Logits, loss and gradients, and generation by single steps."""
    out = run(
        MODEL
        + CHECK
        + """
prompt = tokens[:, :9]
before, text = results(), model.eval().generate(prompt, max_new_tokens=12, do_sample=False)
changed = rt.use_in_transformers()
assert any("qwen3_next" in name for name in changed), changed
assert rt.use_in_transformers() == []
calls = []
import riverrun.torch._matrix_state as matrix_state
original = matrix_state._call
matrix_state._call = lambda *x: calls.append(x[0].shape[1]) or original(*x)
after = results()
assert calls == [75], calls
assert torch.equal(model.eval().generate(prompt, max_new_tokens=12, do_sample=False), text)
assert 1 in calls and 9 in calls, calls
for a, b in zip(before, after):
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
print("same", len(after))
"""
    )
    assert out.startswith("same")


def test_a_module_that_is_imported_later():
    out = run(
        "import riverrun.torch as rt\nassert rt.use_in_transformers() == []\n"
        + MODEL
        + CHECK
        + """
import transformers.models.qwen3_next.modeling_qwen3_next as module
assert module.torch_chunk_gated_delta_rule._riverrun and module.torch_recurrent_gated_delta_rule._riverrun
assert all(torch.isfinite(x).all() for x in results())
print("finite")
"""
    )
    assert out.startswith("finite")
