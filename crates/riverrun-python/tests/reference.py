"""The operations by PyTorch's own, step by step, in any dtype; and the rule that accepts a result.

In float64 a function is the reference; in the dtype of a result it is the naive computation that sets the tolerance.
"""

import torch


def scan(a, b, h0=None, reset=None, reverse=False):
    batch, steps, dim = a.shape
    h = a.new_zeros(batch, dim) if h0 is None else h0
    out = [None] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        if reset is not None:
            h = torch.where(reset[:, t, None], torch.zeros_like(h), h)
        h = a[:, t] * h + b[:, t]
        out[t] = h
    return torch.stack(out, 1) if out else a * 0


def activation(candidate, n):
    if candidate == "tanh":
        return torch.tanh(n)
    return torch.where(n >= 0, n + 0.5, torch.sigmoid(n)) if candidate == "g" else n


def min_gru(z, n, *rest, candidate="identity"):
    z = torch.sigmoid(z)
    return scan(1 - z, z * activation(candidate, n), *rest)


def min_lstm(f, i, n, *rest, candidate="identity", normalized=True):
    f, i = torch.sigmoid(f), torch.sigmoid(i)
    if normalized:
        f, i = f / (f + i), i / (f + i)
    return scan(f, i * activation(candidate, n), *rest)


def rg_lru(s, u, *rest):
    return scan(torch.exp(-s), torch.sqrt(-torch.expm1(-2 * s)) * u, *rest)


def cell(kind, x, w, u, b_ih, b_hh, h0=None, c0=None, reset=None, lengths=None, reverse=False):
    """`(h, h_last)`, with `c_last` for the LSTM."""
    batch, steps, _ = x.shape
    hidden = u.shape[1]
    h = x.new_zeros(batch, hidden) if h0 is None else h0
    c = x.new_zeros(batch, hidden) if c0 is None else c0
    out = [None] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        held = None if lengths is None else (t >= lengths)[:, None]
        h_prev, c_prev = h, c
        if reset is not None:
            h, c = (torch.where(reset[:, t, None], torch.zeros_like(s), s) for s in (h, c))
        xg, a = x[:, t] @ w.T, h @ u.T
        xg = xg if b_ih is None else xg + b_ih
        a = a if b_hh is None else a + b_hh
        if kind == "gru":
            (xr, xz, xn), (ar, az, an) = xg.chunk(3, 1), a.chunk(3, 1)
            r, z = torch.sigmoid(xr + ar), torch.sigmoid(xz + az)
            h = (1 - z) * torch.tanh(xn + r * an) + z * h
        elif kind == "lstm":
            i, f, g, o = (xg + a).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        else:
            h = torch.tanh(xg + a) if kind == "elman-tanh" else torch.relu(xg + a)
        if held is not None:
            h, c = torch.where(held, h_prev, h), torch.where(held, c_prev, c)
        out[t] = h
    y = torch.stack(out, 1) if out else x.new_zeros(batch, 0, hidden)
    return (y, h, c) if kind == "lstm" else (y, h)


def matrix_state(q, k, v, g=None, beta=None, initial=None, scale=None, bounds=None):
    """`(o, last)`; of sequences that follow each other in one row with `bounds`, a list."""
    if bounds is not None:
        parts = []
        for n, (start, end) in enumerate(zip(bounds, bounds[1:])):
            cut = [None if x is None else x[:, start:end] for x in (q, k, v, g, beta)]
            parts.append(matrix_state(*cut, None if initial is None else initial[n : n + 1], scale))
        return torch.cat([o for o, _ in parts], 1), torch.cat([last for _, last in parts])
    batch, steps, key_heads, key = q.shape
    heads, value = v.shape[2:]
    q, k = (x.repeat_interleave(heads // key_heads, 2) for x in (q, k))
    s = q.new_zeros(batch, heads, key, value) if initial is None else initial
    scale = key**-0.5 if scale is None else scale
    out = []
    for t in range(steps):
        if g is not None:
            decay = torch.exp(g[:, t])
            s = s * (decay[..., None, None] if g.dim() == 3 else decay[..., None])
        u = v[:, t]
        if beta is not None:
            u = beta[:, t, :, None] * (u - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * u[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", s, q[:, t] * scale))
    return (torch.stack(out, 1) if out else v * 0), s


def judge(name, found, naive, expected, steps, arriving=0.0):
    """Accepts `found` if its error is at most twice the naive one's, plus `eps · sqrt(steps)` times the tensor's scale.

    `steps` is the length of the longest sum, of a cell's sequence all its steps of `H` terms each; the error of a sum of
    rounded terms grows with its root. A gradient's terms are those that arrive, whose largest is `arriving`, times factors
    of the size of one: where they cancel, their roundings stay.
    """
    assert found.shape == expected.shape, f"{name}: {list(found.shape)} for {list(expected.shape)}"
    if expected.numel() == 0:
        return
    assert torch.isfinite(found).all(), f"{name}: not finite"
    errors = [(x.double() - expected).abs().max().item() for x in (found, naive)]
    scale = max(expected.abs().max().item(), arriving)
    allowed = 2 * errors[1] + torch.finfo(found.dtype).eps * steps**0.5 * scale
    assert errors[0] <= allowed, f"{name}: error {errors[0]:.3g}, allowed {allowed:.3g}, naive {errors[1]:.3g}"


def compare(operation, formula, tensors, dtype, steps):
    """Compares results and all gradients of `operation` with `formula`, on float64 `tensors` rounded to `dtype`."""
    rounded = [x.detach().to(dtype) for x in tensors]

    def run(function, kind):
        leaves = [x.clone().to(kind).requires_grad_() for x in rounded]
        results = function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        torch.manual_seed(1)
        cotangents = [torch.randn(r.shape, dtype=torch.float64).to(dtype).to(r.dtype) for r in results]
        live = [(r, c) for r, c in zip(results, cotangents) if r.requires_grad]
        outputs, cotangents = zip(*live)
        gradients = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
        arriving = max(c.abs().max().item() for c in cotangents if c.numel() > 0)
        return [(x, 0.0) for x in results] + [(x, arriving) for x in gradients]

    found, naive, expected = run(operation, dtype), run(formula, dtype), run(formula, torch.float64)
    assert found[0][0].dtype == dtype
    for index, ((f, arriving), (n, _), (e, _)) in enumerate(zip(found, naive, expected)):
        if e is None:
            assert f is None or not f.any(), f"tensor {index}: a gradient where there is none"
            continue
        judge(f"tensor {index}", f, n, e, steps, arriving)
