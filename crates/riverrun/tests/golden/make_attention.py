#!/usr/bin/env python3
"""Writes attention.json and attention.safetensors: torch.nn.MultiheadAttention under a causal mask in float64, its output and the
gradients of its input and weights.

    python3 make_attention.py        (made with PyTorch 2.15)
"""
import json
import pathlib

import torch
from safetensors.torch import save_file

torch.manual_seed(13)
B, T, D, H = 2, 7, 12, 3
layer = torch.nn.MultiheadAttention(D, H, batch_first=True).double()
with torch.no_grad():
    for parameter in layer.parameters():
        parameter.copy_((0.4 * torch.randn_like(parameter)).float())
x = torch.randn(B, T, D).float().double().requires_grad_()
d_y = torch.randn(B, T, D).float().double()
mask = torch.nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
y, _ = layer(x, x, x, attn_mask=mask, need_weights=False)
(y * d_y).sum().backward()


def numbers(tensor):
    return [round(v, 7) for v in tensor.flatten().tolist()]


folder = pathlib.Path(__file__).parent
save_file({"encoder." + name: p.detach().float().contiguous() for name, p in layer.named_parameters()},
          folder / "attention.safetensors")
case = dict(batch=B, steps=T, width=D, heads=H, x=numbers(x), y=numbers(y), d_y=numbers(d_y), d_x=numbers(x.grad))
for name, parameter in layer.named_parameters():
    case["d_" + name] = numbers(parameter.grad)
(folder / "attention.json").write_text(json.dumps(case) + "\n")
