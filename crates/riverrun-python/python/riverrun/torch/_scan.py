"""Linear recurrences as PyTorch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from riverrun import _kernels, _problem
from riverrun.torch import _tensors
from riverrun.torch._cuda import under_autocast
from riverrun.torch._transforms import in_float32, with_transforms


def _inputs(x0, x1, x2):
    return [x for x in (x0, x1, x2) if x is not None]


def _scan_now(
    x0: Tensor, x1: Tensor | None, x2: Tensor | None, h0: Tensor | None, reset: Tensor | None, reverse: bool, gate: str
) -> Tensor:
    return _kernels.scan(_tensors, gate, _inputs(x0, x1, x2), h0, reset, reverse)


_scan = torch.library.custom_op("riverrun::scan", mutates_args=())(_scan_now)


@_scan.register_fake
def _(x0, x1, x2, h0, reset, reverse, gate):
    shape, _ = _problem.scan(_tensors, gate, _inputs(x0, x1, x2), h0, reset)
    return x0.new_empty(shape)


def _scan_backward_now(
    x0: Tensor,
    x1: Tensor | None,
    x2: Tensor | None,
    h0: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    gate: str,
    h: Tensor,
    d_h: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = _inputs(x0, x1, x2)
    gradients, d_h0 = _kernels.scan_backward(_tensors, gate, inputs, h0, reset, reverse, h, d_h)
    gradients += [x0.new_empty(0) for _ in range(3 - len(gradients))]
    return (*gradients, x0.new_empty(0) if d_h0 is None else d_h0)


_scan_backward = torch.library.custom_op("riverrun::scan_backward", mutates_args=())(_scan_backward_now)


@_scan_backward.register_fake
def _(x0, x1, x2, h0, reset, reverse, gate, h, d_h):
    return tuple(x0.new_empty(0 if x is None else x.shape) for x in (x0, x1, x2, h0))


def _setup(ctx, inputs, output):
    x0, x1, x2, h0, reset, ctx.reverse, ctx.gate = inputs
    ctx.save_for_backward(x0, x1, x2, h0, reset, output)


def _backward(ctx, d_h):
    x0, x1, x2, h0, reset, h = ctx.saved_tensors
    gradients = _gradients(x0, x1, x2, h0, reset, ctx.reverse, ctx.gate, h, d_h)
    given = (x0, x1, x2, h0)
    wanted = (d if x is not None else None for x, d in zip(given, gradients))
    return (*wanted, None, None, None)


def _setup_again(ctx, inputs, output):
    a, _, _, h0, reset, ctx.reverse, ctx.gate, h, _ = inputs
    if ctx.gate == "raw":
        ctx.save_for_backward(a, h0, reset, h, output[1])


def _backward_again(ctx, u_a, u_b, _, u_h0):
    """The gradients of the raw scan's gradients, by operations that have gradients themselves.

    With `D` the gradient of `b`, `∂L/∂a_t = D_t h_{t-1}` and `∂L/∂h_0 = a_1 D_1`, and `D` is a scan of `∂L/∂h` against the
    order. A step with a reset has no state before it.
    """
    if ctx.gate != "raw":
        raise RuntimeError(
            f"riverrun: the gate {ctx.gate} has no second derivative; linear_scan has, on coefficients computed by PyTorch"
        )
    a, h0, reset, h, d_b = ctx.saved_tensors
    reverse = ctx.reverse
    steps = a.shape[1]
    # `u_a` and the coefficient count only where there is a state before the step.
    if reset is not None:
        mask = reset.unsqueeze(2)
        u_a, a = u_a.masked_fill(mask, 0), a.masked_fill(mask, 0)
    first = steps - 1 if reverse else 0
    start = torch.zeros_like(h[:, :1]) if h0 is None else h0.unsqueeze(1)
    before = torch.cat([h[:, 1:], start], 1) if reverse else torch.cat([start, h[:, :-1]], 1)
    on_d = u_b + u_a * before
    if h0 is not None:
        on_first = (a[:, first] * u_h0).unsqueeze(1)
        rest = torch.zeros_like(a[:, 1:])
        on_d = on_d + torch.cat([rest, on_first] if reverse else [on_first, rest], 1)
    # That of `∂L/∂h`: the scan of the same coefficients, from 0.
    on_d_h = linear_scan(a, on_d, None, None, reverse)
    zero = torch.zeros_like(on_d_h[:, :1])
    on_d_before = torch.cat([on_d_h[:, 1:], zero], 1) if reverse else torch.cat([zero, on_d_h[:, :-1]], 1)
    on_a = d_b * on_d_before
    if h0 is not None:
        on_first = (u_h0 * d_b[:, first]).unsqueeze(1)
        on_a = on_a + torch.cat([rest, on_first] if reverse else [on_first, rest], 1)
    if reset is not None:
        on_a = on_a.masked_fill(mask, 0)
    on_before = u_a * d_b
    on_h = torch.cat([zero, on_before[:, :-1]], 1) if reverse else torch.cat([on_before[:, 1:], zero], 1)
    on_h0 = None if h0 is None else on_before[:, first]
    return on_a, None, None, on_h0, None, None, None, on_h, on_d_h


_call = with_transforms(_scan, _scan_now, _setup, _backward)
_gradients = with_transforms(_scan_backward, _scan_backward_now, _setup_again, _backward_again)
in_float32(_scan)


def _run(gate, inputs, h0, reset, reverse):
    names = _problem.GATES.get(gate, ()) if len(inputs) > 1 else ("x",)
    _tensors.expect_place(**dict(zip(names, inputs)), h0=h0, reset=reset)
    if len(inputs) > 1 and gate != "raw" and _tensors.on_gpu(inputs[0]):
        # The kernels take inputs side by side there, as `gated_scan` does.
        _problem.scan(_tensors, gate, inputs, h0, reset)
        inputs = [torch.cat(inputs, 2)]
    x0, x1, x2, h0 = under_autocast(*(*inputs, None, None)[:3], h0)
    return _call(x0, x1, x2, h0, reset, reverse, gate)


def linear_scan(
    a: Tensor, b: Tensor, h0: Tensor | None = None, reset: Tensor | None = None, reverse: bool = False
) -> Tensor:
    """The linear recurrence `h_t = a_t * h_{t-1} + b_t`.

    Args:
        a: `[B, T, D]`, float32, float64, float16 or bfloat16.
        b: `[B, T, D]`, of the same dtype.
        h0: `[B, D]`, the state before the first step; zero when `None`.
        reset: `[B, T]`, bool; where it is set, the state before the step counts as 0, and no gradient passes through it.
        reverse: whether time runs from the last step to the first.

    Returns:
        `[B, T, D]`, the state after every step. The last one is `h[:, -1]`, in reverse `h[:, 0]`.

    Tensors whose channels are contiguous are used where they are, transposed and expanded ones too. Sums are in float32, in
    float64 for float64. Derivatives of every order.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit.
    """
    return _run("raw", [a, b], h0, reset, reverse)


def min_gru(
    z: Tensor,
    n: Tensor,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    candidate: str = "identity",
) -> Tensor:
    """The recurrence of minGRU: `h_t = (1 - σ(z_t)) * h_{t-1} + σ(z_t) * act(n_t)`.

    Args:
        z, n: `[B, T, D]`, the pre-activations of the gate and of the candidate.
        h0, reset, reverse: as for `linear_scan`.
        candidate: `act`: `"identity"`, `"tanh"`, or `"g"`, which is `n + 1/2` from 0 on and `σ(n)` below.

    Returns:
        `[B, T, D]`.

    Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.1 and appendix B.
    """
    return _run(_problem.candidate_gate("min-gru", candidate), [z, n], h0, reset, reverse)


def min_lstm(
    f: Tensor,
    i: Tensor,
    n: Tensor,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    candidate: str = "identity",
    normalized: bool = True,
) -> Tensor:
    """The recurrence of minLSTM: `h_t = f'_t * h_{t-1} + i'_t * act(n_t)`.

    Args:
        f, i, n: `[B, T, D]`, the pre-activations of the gates and of the candidate.
        h0, reset, reverse, candidate: as for `min_gru`.
        normalized: whether `f' = σ(f) / (σ(f) + σ(i))` and `i' = 1 - f'`; else they are `σ(f)` and `σ(i)`.

    Returns:
        `[B, T, D]`.

    Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.2.
    """
    base = "min-lstm" if normalized else "min-lstm-raw"
    return _run(_problem.candidate_gate(base, candidate), [f, i, n], h0, reset, reverse)


def rg_lru(
    s: Tensor, u: Tensor, h0: Tensor | None = None, reset: Tensor | None = None, reverse: bool = False
) -> Tensor:
    """The recurrence of the RG-LRU: `h_t = a_t * h_{t-1} + sqrt(1 - a_t²) * u_t` with `a_t = e^-s_t`.

    Args:
        s: `[B, T, D]`, the rate of decay, from 0 on; in the paper `c * softplus(Λ) * r_t`.
        u: `[B, T, D]`, the gated input; in the paper `i_t * x_t`.
        h0, reset, reverse: as for `linear_scan`.

    Returns:
        `[B, T, D]`.

    The slope of the square root counts as 1000 at most, as in the authors' code.

    Source: De et al., *Griffin* (2024), section 2.4.
    """
    return _run("rg-lru", [s, u], h0, reset, reverse)


def gated_scan(
    x: Tensor, gate: str, h0: Tensor | None = None, reset: Tensor | None = None, reverse: bool = False
) -> Tensor:
    """A recurrence whose inputs lie beside each other, as one linear layer writes them.

    Args:
        x: `[B, T, inputs * D]`.
        gate: a name of `riverrun.GATES`, such as `"min-gru"`.
        h0, reset, reverse: as for `linear_scan`.

    Returns:
        `[B, T, D]`.
    """
    return _run(gate, [x], h0, reset, reverse)
