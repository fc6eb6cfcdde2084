#!/usr/bin/env python3
"""Writes layers.json: outputs and gradients of minGRU and minLSTM layers by PyTorch in float64, as plain loops.

    python3 make_layers.py        (made with PyTorch 2.15)
"""
import json
import pathlib

import torch

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
B, T, I, H = 2, 7, 3, 4


def numbers(x):
    return [float(v) for v in x.detach().reshape(-1)]


def act(name, u):
    if name == "tanh":
        return u.tanh()
    if name == "g":
        return torch.where(u >= 0, u + 0.5, u.sigmoid())
    return u


def run(kind, candidate, x, h0, weight, bias):
    k = x @ weight + bias
    h, out = h0, []
    for t in range(T):
        if kind == "min-gru":
            k_z, k_h = k[:, t].chunk(2, -1)
            z = k_z.sigmoid()
            h = (1 - z) * h + z * act(candidate, k_h)
        else:
            k_f, k_i, k_h = k[:, t].chunk(3, -1)
            f, i = k_f.sigmoid(), k_i.sigmoid()
            h = f / (f + i) * h + i / (f + i) * act(candidate, k_h)
        out.append(h)
    return torch.stack(out, 1)


cases = []
for kind, groups in (("min-gru", 2), ("min-lstm", 3)):
    for candidate in ("identity", "tanh", "g"):
        x = torch.randn(B, T, I, requires_grad=True)
        h0 = torch.randn(B, H, requires_grad=True)
        weight = torch.randn(I, groups * H, requires_grad=True)
        bias = torch.randn(groups * H, requires_grad=True)
        d_y, d_last = torch.randn(B, T, H), torch.randn(B, H)
        y = run(kind, candidate, x, h0, weight, bias)
        ((y * d_y).sum() + (y[:, -1] * d_last).sum()).backward()
        cases.append(dict(
            kind=kind, candidate=candidate, x=numbers(x), h0=numbers(h0), weight=numbers(weight), bias=numbers(bias),
            d_y=numbers(d_y), d_last=numbers(d_last), y=numbers(y), d_x=numbers(x.grad), d_h0=numbers(h0.grad),
            d_weight=numbers(weight.grad), d_bias=numbers(bias.grad)))
path = pathlib.Path(__file__).with_name("layers.json")
path.write_text(json.dumps(dict(batch=B, steps=T, d_input=I, d_hidden=H, cases=cases)) + "\n")
