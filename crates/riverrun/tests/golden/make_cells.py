#!/usr/bin/env python3
"""Writes cells/: weights of nn.GRU, nn.LSTM and nn.RNN as PyTorch saves them, and cells.json: what PyTorch makes of them in float64.

    python3 make_cells.py        (made with PyTorch 2.15)
"""
import array
import json
import pathlib
import struct

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(11)
B, T, I, H = 3, 6, 4, 5
HERE = pathlib.Path(__file__).parent


def numbers(x):
    return [float(v) for v in x.detach().reshape(-1)]


def save_safetensors(state, path):
    header, data = {}, b""
    for name, tensor in state.items():
        raw = array.array("f", numbers(tensor)).tobytes()
        header[name] = dict(dtype="F32", shape=list(tensor.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def reset_before(net, x, h0):
    """The GRU of the paper, with the parameters of an nn.GRU of one layer."""
    w_r, w_z, w_n = net.weight_ih_l0.chunk(3)
    u_r, u_z, u_n = net.weight_hh_l0.chunk(3)
    b_r, b_z, b_n = net.bias_ih_l0.chunk(3)
    c_r, c_z, c_n = net.bias_hh_l0.chunk(3)
    h, out = h0[0], []
    for t in range(x.shape[1]):
        r = (x[:, t] @ w_r.T + b_r + h @ u_r.T + c_r).sigmoid()
        z = (x[:, t] @ w_z.T + b_z + h @ u_z.T + c_z).sigmoid()
        n = (x[:, t] @ w_n.T + b_n + (r * h) @ u_n.T + c_n).tanh()
        h = (1 - z) * n + z * h
        out.append(h)
    return torch.stack(out, 1), h[None]


CASES = [
    ("gru-1", "gru", 1, False, None),
    ("gru-2-both", "gru", 2, True, None),
    ("gru-before", "gru-before", 1, False, None),
    ("lstm-1", "lstm", 1, False, None),
    ("lstm-2-both", "lstm", 2, True, None),
    ("rnn-tanh-2-both", "rnn-tanh", 2, True, None),
    ("rnn-relu-1", "rnn-relu", 1, False, None),
    ("gru-2-both-packed", "gru", 2, True, [4, 6, 1]),
    ("lstm-2-both-packed", "lstm", 2, True, [4, 6, 1]),
    ("rnn-tanh-2-both-packed", "rnn-tanh", 2, True, [4, 6, 1]),
]
cases = []
for name, kind, layers, both, lengths in CASES:
    options = dict(num_layers=layers, bidirectional=both, batch_first=True)
    if kind == "lstm":
        net = nn.LSTM(I, H, **options)
    elif kind.startswith("rnn"):
        net = nn.RNN(I, H, nonlinearity=kind[4:], **options)
    else:
        net = nn.GRU(I, H, **options)
    torch.save(net.state_dict(), HERE / "cells" / f"{name}.pt")
    if name in ("gru-2-both", "lstm-2-both", "rnn-tanh-2-both"):
        save_safetensors(net.state_dict(), HERE / "cells" / f"{name}.safetensors")
    net = net.double()
    x = torch.randn(B, T, I, dtype=torch.float64, requires_grad=True)
    count = layers * (2 if both else 1)
    h0 = torch.randn(count, B, H, dtype=torch.float64, requires_grad=True)
    c0 = torch.randn(count, B, H, dtype=torch.float64, requires_grad=True)
    start = (h0, c0) if kind == "lstm" else h0
    if kind == "gru-before":
        y, last = reset_before(net, x, h0)
    elif lengths is None:
        y, last = net(x, start)
    else:
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        y, last = net(packed, start)
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=T)
    h_n, c_n = last if kind == "lstm" else (last, None)
    d_y, d_h_n, d_c_n = torch.randn(y.shape), torch.randn(h_n.shape), torch.randn(h_n.shape)
    loss = (y * d_y).sum() + (h_n * d_h_n).sum()
    if c_n is not None:
        loss = loss + (c_n * d_c_n).sum()
    loss.backward()
    case = dict(name=name, kind=kind, layers=layers, bidirectional=both, lengths=lengths, x=numbers(x), h0=numbers(h0),
                y=numbers(y), h_n=numbers(h_n), d_y=numbers(d_y), d_h_n=numbers(d_h_n), d_x=numbers(x.grad), d_h0=numbers(h0.grad),
                d_weights={key: numbers(value.grad) for key, value in net.named_parameters()})
    if c_n is not None:
        case.update(c0=numbers(c0), c_n=numbers(c_n), d_c_n=numbers(d_c_n), d_c0=numbers(c0.grad))
    cases.append(case)
text = json.dumps(dict(batch=B, steps=T, d_input=I, d_hidden=H, cases=cases))
(HERE / "cells.json").write_text(text + "\n")
