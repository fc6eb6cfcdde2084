#!/usr/bin/env python3
"""Writes cell.json: every cell in float64 with the gradients of all inputs, made by PyTorch's autograd.

    python3 make_cell.py > cell.json

Cells with a PyTorch module (reset-after GRU, LSTM, Elman) are run through that module as well and must agree with the explicit
loop; the reset-before GRU has none and is the loop alone. Loss: sum(h * d_h) + sum(h_last * d_h_last) + sum(c_last * d_c_last).
"""
import json
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(20240607)
GATES = {"gru": 3, "gru-reset-before": 3, "lstm": 4, "elman-tanh": 1, "elman-relu": 1}


def step(cell, x, u, b, h, c):
    H = h.shape[1]
    if cell == "gru-reset-before":
        r, z = torch.sigmoid(x[:, : 2 * H] + h @ u[: 2 * H].T + b[: 2 * H]).chunk(2, 1)
        n = torch.tanh(x[:, 2 * H :] + (r * h) @ u[2 * H :].T + b[2 * H :])
        return (1 - z) * n + z * h, c
    a = h @ u.T + b
    if cell == "gru":
        r, z = torch.sigmoid(x[:, : 2 * H] + a[:, : 2 * H]).chunk(2, 1)
        n = torch.tanh(x[:, 2 * H :] + r * a[:, 2 * H :])
        return (1 - z) * n + z * h, c
    if cell == "lstm":
        i, f, g, o = (x + a).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    return (torch.tanh(x + a) if cell == "elman-tanh" else torch.relu(x + a)), c


def run(cell, reverse, x, u, b, h, c, reset):
    T, out = x.shape[1], [None] * x.shape[1]
    for t in reversed(range(T)) if reverse else range(T):
        keep = 1 - reset[:, t : t + 1]
        h, c = step(cell, x[:, t], u, b, h * keep, c * keep)
        out[t] = h
    return torch.stack(out, 1), h, c


def module(cell, x, u, b, h, c):
    """The same by torch.nn, whose own input product is made the identity."""
    B, T, W = x.shape
    H, G = h.shape[1], GATES[cell]
    kind = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}.get(cell, torch.nn.RNN)
    extra = {"nonlinearity": cell.split("-")[1]} if kind is torch.nn.RNN else {}
    m = kind(W, H, batch_first=True, **extra)
    with torch.no_grad():
        m.weight_ih_l0.copy_(torch.eye(G * H))
        m.bias_ih_l0.zero_()
        m.weight_hh_l0.copy_(u)
        m.bias_hh_l0.copy_(b)
        state = (h[None], c[None]) if cell == "lstm" else h[None]
        return m(x, state)[0]


def digits(t):
    return [float(f"{v:.15g}") for v in t.flatten().tolist()]


cases = []
for cell, G in GATES.items():
    for B, T, H, reverse, resets in ((2, 6, 3, False, False), (3, 5, 4, True, True), (1, 4, 1, False, True)):
        x = (torch.randn(B, T, G * H)).requires_grad_()
        u, b = (torch.randn(G * H, H) * 0.7).requires_grad_(), (torch.randn(G * H) * 0.5).requires_grad_()
        h0, c0 = torch.randn(B, H).requires_grad_(), torch.randn(B, H).requires_grad_()
        reset = (torch.rand(B, T) < 0.3).double() if resets else torch.zeros(B, T)
        d_h, d_h_last, d_c_last = torch.randn(B, T, H), torch.randn(B, H), torch.randn(B, H)
        h, h_last, c_last = run(cell, reverse, x, u, b, h0, c0, reset)
        if cell != "gru-reset-before" and not reverse and not resets:
            assert torch.allclose(module(cell, x, u, b, h0, c0), h, rtol=1e-13, atol=1e-13), cell
        lstm = cell == "lstm"
        loss = (h * d_h).sum() + (h_last * d_h_last).sum() + ((c_last * d_c_last).sum() if lstm else 0)
        grads = torch.autograd.grad(loss, [x, u, b, h0] + ([c0] if lstm else []))
        case = dict(cell=cell, batch=B, steps=T, hidden=H, reverse=reverse)
        if resets:
            case["reset"] = [bool(v) for v in reset.flatten().tolist()]
        named = dict(xg=x, u=u, bias=b, h0=h0, d_h=d_h, d_h_last=d_h_last, h=h, h_last=h_last)
        named |= dict(zip(("d_xg", "d_u", "d_bias", "d_h0", "d_c0"), grads))
        if lstm:
            named |= dict(c0=c0, d_c_last=d_c_last, c_last=c_last)
        cases.append(case | {name: digits(t) for name, t in named.items()})
print("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]")
