"""The operations step by step, from their formulas, in the dtype of their arguments."""

from __future__ import annotations

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def scan(a, b, h0=None, reset=None, reverse=False):
    """`h` of `h_t = a_t * h_{t-1} + b_t`."""
    h = np.zeros_like(b[:, 0]) if h0 is None else h0
    out = np.empty_like(b)
    steps = range(b.shape[1])
    for t in reversed(steps) if reverse else steps:
        if reset is not None:
            h = np.where(reset[:, t, None], np.zeros_like(h), h)
        out[:, t] = h = a[:, t] * h + b[:, t]
    return out


def _activation(gate, n):
    if gate.endswith("-tanh"):
        return np.tanh(n)
    return np.where(n >= 0, n + n.dtype.type(0.5), sigmoid(n)) if gate.endswith("-g") else n


def coefficients(gate, inputs):
    """`a` and `b` of a gate."""
    if gate == "raw":
        return inputs
    if gate == "sigmoid":
        return sigmoid(inputs[0]), inputs[1]
    if gate == "rg-lru":
        s, u = inputs
        return np.exp(-s), np.sqrt(-np.expm1(-2 * s)) * u
    if gate.startswith("min-gru"):
        z = sigmoid(inputs[0])
        return 1 - z, z * _activation(gate, inputs[1])
    f, i = sigmoid(inputs[0]), sigmoid(inputs[1])
    if not gate.startswith("min-lstm-raw"):
        f, i = f / (f + i), i / (f + i)
    return f, i * _activation(gate, inputs[2])


def cell(kind, x, w, u, b_ih, b_hh, h0, c0=None, reset=None, lengths=None, reverse=False):
    """`h`, the last state, and the LSTM's last cell state."""
    h, c = h0, c0 if c0 is not None else h0
    out = np.empty((*x.shape[:2], h0.shape[1]), x.dtype)
    steps = range(x.shape[1])
    for t in reversed(steps) if reverse else steps:
        h_prev, c_prev = h, c
        if reset is not None:
            h, c = (np.where(reset[:, t, None], np.zeros_like(s), s) for s in (h, c))
        xg, a = x[:, t] @ w.T + b_ih, h @ u.T + b_hh
        if kind == "gru":
            (xr, xz, xn), (ar, az, an) = np.split(xg, 3, 1), np.split(a, 3, 1)
            z = sigmoid(xz + az)
            h = (1 - z) * np.tanh(xn + sigmoid(xr + ar) * an) + z * h
        elif kind == "lstm":
            i, f, g, o = np.split(xg + a, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            h = np.tanh(xg + a) if kind == "elman-tanh" else np.maximum(xg + a, 0)
        if lengths is not None:
            held = (t >= lengths)[:, None]
            h, c = np.where(held, h_prev, h), np.where(held, c_prev, c)
        out[:, t] = h
    return [out, h, c] if kind == "lstm" else [out, h]


def matrix_state(q, k, v, g, beta, initial):
    """`o` and the last states; `q` is scaled."""
    group = v.shape[2] // q.shape[2]
    q, k = np.repeat(q, group, 2), np.repeat(k, group, 2)
    s, out = initial.astype(q.dtype), np.empty_like(v)
    for t in range(q.shape[1]):
        decay = np.exp(g[:, t])
        s = s * (decay[..., None, None] if g.ndim == 3 else decay[..., None])
        u = v[:, t]
        if beta is not None:
            u = beta[:, t, :, None] * (u - np.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * u[:, :, None]
        out[:, t] = np.einsum("bhkv,bhk->bhv", s, q[:, t])
    return [out, s]


def rms_norm(x, weight, eps):
    """`y` of RMSNorm."""
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=x.dtype)
    return x / np.sqrt(mean + x.dtype.type(eps)) * weight


def cross_entropy(logits, targets):
    """The mean loss of the rows that count."""
    counts = targets >= 0
    top = logits.max(axis=1, keepdims=True)
    lse = np.log(np.exp(logits - top).sum(axis=1, dtype=logits.dtype)) + top[:, 0]
    own = logits[np.arange(len(targets)), np.maximum(targets, 0)]
    return np.mean((lse - own)[counts], dtype=logits.dtype)
