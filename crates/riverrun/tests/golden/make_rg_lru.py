#!/usr/bin/env python3
"""Writes rg_lru.json: outputs and gradients of RG-LRU layers by PyTorch in float64, as plain loops.

    python3 make_rg_lru.py        (made with PyTorch 2.15)
"""
import json
import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
B, T, H = 2, 7, 4


def numbers(x):
    return [float(v) for v in x.detach().reshape(-1)]


def run(x, h0, weight, bias, lam, project):
    v = x if project is None else x @ project
    r, i = (v @ weight + bias).sigmoid().chunk(2, -1)
    log_a = -8 * F.softplus(lam) * r
    a, b = log_a.exp(), (1 - (2 * log_a).exp()).sqrt() * i * v
    h, out = h0, []
    for t in range(T):
        h = a[:, t] * h + b[:, t]
        out.append(h)
    return torch.stack(out, 1)


cases = []
for d_input in (H, 3):
    project = torch.randn(d_input, H, requires_grad=True) if d_input != H else None
    tensors = dict(
        x=torch.randn(B, T, d_input), h0=torch.randn(B, H), weight=torch.randn(H, 2 * H), bias=torch.randn(2 * H),
        # From fast forgetting to slow.
        lam=torch.linspace(1.0, -7.0, H))
    for tensor in tensors.values():
        tensor.requires_grad_()
    d_y, d_last = torch.randn(B, T, H), torch.randn(B, H)
    y = run(**tensors, project=project)
    ((y * d_y).sum() + (y[:, -1] * d_last).sum()).backward()
    case = dict(d_input=d_input, y=numbers(y), d_y=numbers(d_y), d_last=numbers(d_last))
    if project is not None:
        tensors["project"] = project
    for name, tensor in tensors.items():
        case[name] = numbers(tensor)
        case["d_" + name] = numbers(tensor.grad)
    cases.append(case)
path = pathlib.Path(__file__).with_name("rg_lru.json")
path.write_text(json.dumps(dict(batch=B, steps=T, d_hidden=H, cases=cases)) + "\n")
