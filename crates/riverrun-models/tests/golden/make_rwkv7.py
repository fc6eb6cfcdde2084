#!/usr/bin/env python3
"""Writes published/rwkv7: a small RWKV-7 of random weights with the names and shapes of the published files, its logits, its loss
and the gradients of all weights, in float64.

    python3 make_rwkv7.py        (made with PyTorch 2.15)

One step after the other, by the equations of the paper (section 4); written for this test.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, layer_norm, normalize

torch.manual_seed(7)
B, T, PROMPT, VOCAB, LAYERS, HEADS, SIZE, INNER = 2, 9, 5, 23, 3, 2, 8, 40
RANKS = dict(w=5, a=3, v=4, g=6)
WIDTH = HEADS * SIZE

shapes = {"emb.weight": (VOCAB, WIDTH), "head.weight": (VOCAB, WIDTH)}
for name in ["blocks.0.ln0", "ln_out"] + [f"blocks.{n}.{ln}" for n in range(LAYERS) for ln in ["ln1", "ln2", "att.ln_x"]]:
    shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
for n in range(LAYERS):
    for part in ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a"]:
        shapes[f"blocks.{n}.att.{part}"] = (1, 1, WIDTH)
    shapes[f"blocks.{n}.att.r_k"] = (HEADS, SIZE)
    for part, rank in RANKS.items():
        if part == "v" and n == 0:
            continue
        if part != "g":
            shapes[f"blocks.{n}.att.{part}0"] = (1, 1, WIDTH)
        shapes |= {f"blocks.{n}.att.{part}1": (WIDTH, rank), f"blocks.{n}.att.{part}2": (rank, WIDTH)}
    for part in ["receptance", "key", "value", "output"]:
        shapes[f"blocks.{n}.att.{part}.weight"] = (WIDTH, WIDTH)
    shapes |= {f"blocks.{n}.ffn.x_k": (1, 1, WIDTH), f"blocks.{n}.ffn.key.weight": (INNER, WIDTH),
               f"blocks.{n}.ffn.value.weight": (WIDTH, INNER)}
weights = {name: (0.3 * torch.randn(shape)).double().requires_grad_() for name, shape in shapes.items()}


def norm(x, name, groups=1, epsilon=1e-5):
    x = layer_norm(x.unflatten(-1, (groups, -1)), (x.shape[-1] // groups,), eps=epsilon).flatten(-2)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def forward(tokens):
    zeros = torch.zeros(B, WIDTH, dtype=torch.float64)
    before = {(n, part): zeros for n in range(LAYERS) for part in ["att", "ffn"]}
    states = [torch.zeros(B, HEADS, SIZE, SIZE, dtype=torch.float64) for _ in range(LAYERS)]
    logits = []
    for t in range(tokens.shape[1]):
        x = norm(weights["emb.weight"][tokens[:, t]], "blocks.0.ln0")
        for n in range(LAYERS):
            get = lambda part: weights[f"blocks.{n}.att.{part}"].flatten()
            matrix = lambda part: weights[f"blocks.{n}.att.{part}"]
            u = norm(x, f"blocks.{n}.ln1")
            mixed = {part: u + (before[n, "att"] - u) * get(f"x_{part}") for part in "rwkvag"}
            before[n, "att"] = u
            r = mixed["r"] @ matrix("receptance.weight").T
            k = mixed["k"] @ matrix("key.weight").T
            v = mixed["v"] @ matrix("value.weight").T
            if n == 0:
                first = v
            else:
                v = v + (first - v) * torch.sigmoid(get("v0") + mixed["v"] @ matrix("v1") @ matrix("v2"))
            w = get("w0") + torch.tanh(mixed["w"] @ matrix("w1")) @ matrix("w2")
            decay = torch.exp(-torch.exp(torch.tensor(-0.5)) * torch.sigmoid(w))
            a = torch.sigmoid(get("a0") + mixed["a"] @ matrix("a1") @ matrix("a2"))
            g = torch.sigmoid(mixed["g"] @ matrix("g1")) @ matrix("g2")
            heads = lambda y: y.unflatten(-1, (HEADS, SIZE))
            kappa = normalize(heads(k * get("k_k")), dim=-1)
            k = k * (1 + (a - 1) * get("k_a"))
            r, k, v, a, decay = map(heads, (r, k, v, a, decay))
            # Rows are of keys, columns of values.
            state = states[n]
            erased = torch.einsum("bhkv,bhk->bhv", state, kappa)
            state = state * decay[..., None] - (kappa * a)[..., None] * erased[..., None, :] + k[..., None] * v[..., None, :]
            states[n] = state
            y = torch.einsum("bhkv,bhk->bhv", state, r).flatten(-2)
            y = norm(y, f"blocks.{n}.att.ln_x", HEADS, 64e-5)
            y = y + ((r * k * matrix("r_k")).sum(-1, keepdim=True) * v).flatten(-2)
            x = x + (y * g) @ matrix("output.weight").T
            u = norm(x, f"blocks.{n}.ln2")
            inner = u + (before[n, "ffn"] - u) * weights[f"blocks.{n}.ffn.x_k"].flatten()
            before[n, "ffn"] = u
            inner = torch.relu(inner @ weights[f"blocks.{n}.ffn.key.weight"].T) ** 2
            x = x + inner @ weights[f"blocks.{n}.ffn.value.weight"].T
        logits.append(norm(x, "ln_out") @ weights["head.weight"].T)
    return torch.stack(logits, 1)


tokens = torch.randint(0, VOCAB, (B, T + 1))
logits = forward(tokens[:, :-1])
loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
loss.backward()
folder = pathlib.Path(__file__).with_name("published") / "rwkv7"
folder.mkdir(parents=True, exist_ok=True)
save_file({name: x.detach().float() for name, x in weights.items()}, folder / "model.safetensors")
save_file({name: x.grad.float() for name, x in weights.items()}, folder / "gradients.safetensors")
for file in folder.iterdir():
    file.chmod(0o644)
numbers = dict(batch=B, steps=T, prompt=PROMPT, tokens=tokens.flatten().tolist(), loss=loss.item(),
               parameters=sum(x.numel() for x in weights.values()), logits=[round(x, 7) for x in logits.flatten().tolist()])
(folder / "expected.json").write_text(json.dumps(numbers) + "\n")
