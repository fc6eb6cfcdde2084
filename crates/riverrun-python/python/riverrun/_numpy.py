"""The operations on NumPy arrays, and on anything that NumPy can view: DLPack on the CPU, the buffer protocol."""

from __future__ import annotations

from riverrun import _arrays, _kernels, _problem


def _views(*arrays):
    return [None if x is None else _arrays.asarray(x) for x in arrays]


def _whole_numbers(what, x):
    import numpy as np

    if x is None:
        return None
    x = _arrays.asarray(x)
    if x.dtype.kind not in "iu":
        raise ValueError(f"{what}: expected integers, found dtype {x.dtype}")
    return x.astype(np.int64, copy=False)


def linear_scan(a, b, h0=None, reset=None, reverse=False):
    """The linear recurrence `h_t = a_t * h_{t-1} + b_t`.

    Args:
        a, b: `[B, T, D]`, float32, float64, float16, or bfloat16 of `ml_dtypes`.
        h0: `[B, D]`, the state before the first step; zero when `None`.
        reset: `[B, T]`, bool; where it is set, the state before the step counts as 0.
        reverse: whether time runs from the last step to the first.

    Returns:
        `[B, T, D]`, the state after every step, in the dtype of `a`. Sums are in float32, in float64 for float64.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit.
    """
    a, b, h0, reset = _views(a, b, h0, reset)
    return _kernels.scan(_arrays, "raw", [a, b], h0, reset, reverse)


def linear_scan_backward(a, b, h, d_h, h0=None, reset=None, reverse=False):
    """The gradients of `linear_scan`.

    Args:
        h: `[B, T, D]`, as `linear_scan` gave it for the other arguments; d_h: `[B, T, D]`, the gradient of `h`.

    Returns:
        The gradients of `a`, `b` and `h0`; the last one is `None` without `h0`.
    """
    a, b, h, d_h, h0, reset = _views(a, b, h, d_h, h0, reset)
    (d_a, d_b), d_h0 = _kernels.scan_backward(_arrays, "raw", [a, b], h0, reset, reverse, h, d_h)
    return d_a, d_b, d_h0


def min_gru(z, n, h0=None, reset=None, reverse=False, candidate="identity"):
    """The recurrence of minGRU: `h_t = (1 - σ(z_t)) * h_{t-1} + σ(z_t) * act(n_t)`.

    Args:
        z, n: `[B, T, D]`, the pre-activations of the gate and of the candidate.
        candidate: `act`: `"identity"`, `"tanh"`, or `"g"`, which is `n + 1/2` from 0 on and `σ(n)` below.

    The others, and the result, are those of `linear_scan`.
    """
    z, n, h0, reset = _views(z, n, h0, reset)
    return _kernels.scan(_arrays, _problem.candidate_gate("min-gru", candidate), [z, n], h0, reset, reverse)


def min_lstm(f, i, n, h0=None, reset=None, reverse=False, candidate="identity", normalized=True):
    """The recurrence of minLSTM: `h_t = f'_t * h_{t-1} + i'_t * act(n_t)`.

    Args:
        f, i, n: `[B, T, D]`, the pre-activations of the gates and of the candidate.
        candidate: as for `min_gru`.
        normalized: whether `f' = σ(f) / (σ(f) + σ(i))` and `i' = 1 - f'`; else they are `σ(f)` and `σ(i)`.

    The others, and the result, are those of `linear_scan`.
    """
    gate = _problem.candidate_gate("min-lstm" if normalized else "min-lstm-raw", candidate)
    f, i, n, h0, reset = _views(f, i, n, h0, reset)
    return _kernels.scan(_arrays, gate, [f, i, n], h0, reset, reverse)


def rg_lru(s, u, h0=None, reset=None, reverse=False):
    """The recurrence of the RG-LRU: `h_t = a_t * h_{t-1} + sqrt(1 - a_t²) * u_t` with `a_t = e^-s_t`.

    Args:
        s: `[B, T, D]`, the rate of decay, from 0 on; u: `[B, T, D]`, the gated input.

    The others, and the result, are those of `linear_scan`.
    """
    s, u, h0, reset = _views(s, u, h0, reset)
    return _kernels.scan(_arrays, "rg-lru", [s, u], h0, reset, reverse)


def _cell(kind, x, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, reset, lengths, reverse):
    arrays = _views(x, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, reset)
    return _kernels.cell(_arrays, kind, reverse, False, *arrays, _whole_numbers("lengths", lengths))[:3]


def gru(x, weight_ih, weight_hh, bias_ih=None, bias_hh=None, h0=None, reset=None, lengths=None, reverse=False):
    """One layer of a GRU, in one direction.

    Args:
        x: `[B, T, I]`, float32, float64 or float16; the other arrays are of the same dtype.
        weight_ih: `[3H, I]`; weight_hh: `[3H, H]`; bias_ih, bias_hh: `[3H]`, zero when `None`. The layout is PyTorch's, gates in
            the order r, z, n.
        h0: `[B, H]`, zero when `None`.
        reset: `[B, T]`, bool; where it is set, the state before the step counts as 0.
        lengths: `[B]`, integers from 0 to T; later steps are padding, through which the state passes as it is.
        reverse: whether time runs from the last step to the first.

    Returns:
        `h`, `[B, T, H]`, and the state after the last step, `[B, H]`.
    """
    return _cell("gru", x, weight_ih, weight_hh, bias_ih, bias_hh, h0, None, reset, lengths, reverse)[:2]


def rnn(
    x,
    weight_ih,
    weight_hh,
    bias_ih=None,
    bias_hh=None,
    h0=None,
    reset=None,
    lengths=None,
    reverse=False,
    nonlinearity="tanh",
):
    """One layer of an Elman network, in one direction; weights are `[H, I]` and `[H, H]`, `nonlinearity` is `"tanh"` or
    `"relu"`. The others, and the results, are those of `gru`."""
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity: expected 'tanh' or 'relu', found {nonlinearity!r}")
    kind = f"elman-{nonlinearity}"
    return _cell(kind, x, weight_ih, weight_hh, bias_ih, bias_hh, h0, None, reset, lengths, reverse)[:2]


def lstm(x, weight_ih, weight_hh, bias_ih=None, bias_hh=None, state=None, reset=None, lengths=None, reverse=False):
    """One layer of an LSTM, in one direction; weights are `[4H, I]` and `[4H, H]`, gates in the order i, f, g, o.

    Args:
        state: `h0` and `c0`, each `[B, H]`, zero when `None`.

    The others are those of `gru`.

    Returns:
        `h`, `[B, T, H]`, and the state after the last step: `h` and `c`, each `[B, H]`.
    """
    h0, c0 = (None, None) if state is None else state
    h, *last = _cell("lstm", x, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, reset, lengths, reverse)
    return h, tuple(last)


def _matrix_state(q, k, v, g, beta, scale, initial_state, cu_seqlens):
    q, k, v, g, beta, initial_state = _views(q, k, v, g, beta, initial_state)
    _problem.expect_dims("q", q, 4, "[B, T, H, K]")
    bounds = _whole_numbers("cu_seqlens", cu_seqlens)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    scaled = (q * scale).astype(q.dtype, copy=False)
    return _kernels.matrix_state(_arrays, scaled, k, v, g, beta, initial_state, None, bounds)


def gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, cu_seqlens=None):
    """Gated DeltaNet.

    Args:
        q, k: `[B, T, H, K]`, K from 1 to 256; v: `[B, T, HV, V]`, V from 1 to 256, HV a multiple of H.
        g: `[B, T, HV]`, the logarithm of the decay, at most 0; beta: `[B, T, HV]`.
        scale: of `q`; `1 / sqrt(K)` when `None`.
        initial_state: `[N, HV, K, V]`, float32 (float64 for float64), for N sequences; zero when `None`.
        cu_seqlens: `[N + 1]`: where each of N sequences begins in a batch of 1, and the end.

    Returns:
        `o`, `[B, T, HV, V]`, and the last states, `[N, HV, K, V]`.
    """
    return _matrix_state(q, k, v, g, beta, scale, initial_state, cu_seqlens)


def kda(q, k, v, g, beta, scale=None, initial_state=None, cu_seqlens=None):
    """Kimi Delta Attention: as `gated_delta_rule`, with `g` of `[B, T, HV, K]`."""
    return _matrix_state(q, k, v, g, beta, scale, initial_state, cu_seqlens)


def gla(q, k, v, g, scale=None, initial_state=None, cu_seqlens=None):
    """Gated linear attention: as `kda`, without `beta`: nothing is erased."""
    return _matrix_state(q, k, v, g, None, scale, initial_state, cu_seqlens)


def rms_norm(x, weight, eps=1e-6):
    """`x * weight / sqrt(mean(x²) + eps)` over the last dimension of `x`, `[..., D]`, with a weight `[D]`."""
    x, weight = _views(x, weight)
    return _kernels.rms_norm(_arrays, x, weight, float(eps))


def cross_entropy(logits, targets):
    """The mean of `logsumexp(logits) - logits[target]` over the rows with a target from 0 on.

    Args:
        logits: `[..., classes]`; targets: `[...]`, integers below `classes`.

    Returns:
        One number of NumPy; NaN if no row counts.
    """
    (logits,) = _views(logits)
    targets = _whole_numbers("targets", targets)
    if logits.ndim == 0:
        raise ValueError("logits: expected shape [..., classes], found []")
    _problem.expect_shape("targets", targets, logits.shape[:-1])
    rows = logits.reshape(targets.size, logits.shape[-1])
    return _kernels.cross_entropy(_arrays, rows, targets.reshape(-1))[0][()]
