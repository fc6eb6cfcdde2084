"""Sequences of GRU, LSTM and Elman cells as a PyTorch operation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from riverrun import _kernels, _problem
from riverrun.torch import _cuda, _tensors
from riverrun.torch._transforms import active, in_float32, with_transforms


def _or_empty(x0, *tensors):
    return tuple(x0.new_empty(0) if x is None else x for x in tensors)


def _cell_now(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    kind: str,
    reverse: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kernels = _cuda if _tensors.on_gpu(x) else _kernels
    outputs = kernels.cell(_tensors, kind, reverse, save, x, w, u, b_ih, b_hh, h0, c0, reset, lengths)
    return _or_empty(x, *outputs)


_cell = torch.library.custom_op("riverrun::cell", mutates_args=())(_cell_now)


@_cell.register_fake
def _(x, w, u, b_ih, b_hh, h0, c0, reset, lengths, kind, reverse, save):
    (batch, steps, _, hidden), dtype = _problem.cell(_tensors, kind, x, w, u, b_ih, b_hh, h0, c0, reset, lengths)
    _, blocks = _problem.CELLS[kind]
    saved = (batch, steps, blocks * hidden), getattr(torch, _problem.ARITHMETIC[dtype])
    if _tensors.on_gpu(x):
        saved = _cuda.saved_of(kind, batch, steps, hidden), x.dtype
    return (
        x.new_empty((batch, steps, hidden)),
        x.new_empty((batch, hidden)),
        x.new_empty((batch, hidden) if kind == "lstm" else 0),
        x.new_empty(saved[0], dtype=saved[1]) if save else x.new_empty(0),
    )


def _cell_backward_now(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    kind: str,
    reverse: bool,
    h: Tensor,
    saved: Tensor,
    d_h: Tensor,
    d_h_last: Tensor,
    d_c_last: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    arrays = (x, w, u, b_ih, b_hh, h0, c0, reset, lengths)
    kernels = _cuda if _tensors.on_gpu(x) else _kernels
    gradients = kernels.cell_backward(_tensors, kind, reverse, wanted, *arrays, h, saved, d_h, d_h_last, d_c_last)
    return _or_empty(x, *gradients)


_cell_backward = torch.library.custom_op("riverrun::cell_backward", mutates_args=())(_cell_backward_now)


@_cell_backward.register_fake
def _(x, w, u, b_ih, b_hh, h0, c0, reset, lengths, kind, reverse, h, saved, d_h, d_h_last, d_c_last, wanted):
    arrays = (x, w, u, b_ih, b_hh, h0, c0)
    return tuple(
        x.new_empty(like.shape) if wants and like is not None else x.new_empty(0) for like, wants in zip(arrays, wanted)
    )


def _setup(ctx, inputs, output):
    *arrays, ctx.kind, ctx.reverse, ctx.save = inputs
    h, _, _, saved = output
    ctx.save_for_backward(*arrays, h, saved)
    ctx.mark_non_differentiable(saved)


def _backward(ctx, d_h, d_h_last, d_c_last, _):
    *arrays, h, saved = ctx.saved_tensors
    if not ctx.save:
        raise RuntimeError("riverrun: the cell ran without saving what its gradients need (save=False)")
    wanted = [bool(needs) for needs in ctx.needs_input_grad[:7]]
    d_c_last = d_c_last if ctx.kind == "lstm" else None
    gradients = _gradients(*arrays, ctx.kind, ctx.reverse, h, saved, d_h, d_h_last, d_c_last, wanted)
    given = [d if wants else None for d, wants in zip(gradients, wanted)]
    return (*given, None, None, None, None, None)


_call = with_transforms(_cell, _cell_now, _setup, _backward)
_gradients = with_transforms(_cell_backward, _cell_backward_now)
in_float32(_cell)


def _needs_gradient(*tensors):
    # A transform does not tell by the tensors.
    return torch.is_grad_enabled() and (active() or any(x is not None and x.requires_grad for x in tensors))


def run(kind, x, w, u, b_ih, b_hh, h0=None, c0=None, reset=None, lengths=None, reverse=False):
    """`(h, h_last, c_last)` of a cell of `riverrun._problem.CELLS`; `c_last` is empty for all but the LSTM."""
    arrays = _cuda.under_autocast(x, w, u, b_ih, b_hh, h0, c0)
    _tensors.expect_place(x=x, weight_ih=w, weight_hh=u, bias_ih=b_ih, bias_hh=b_hh, h0=h0, c0=c0, reset=reset, lengths=lengths)
    save = _needs_gradient(*arrays)
    h, h_last, c_last, _ = _call(*arrays, reset, lengths, kind, reverse, save)
    return h, h_last, c_last


def gru(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """One layer of a GRU, in one direction.

    Args:
        x: `[B, T, I]`, float32, float64, float16 or bfloat16; the other tensors are of the same dtype.
        weight_ih: `[3H, I]`; weight_hh: `[3H, H]`; bias_ih, bias_hh: `[3H]`, zero when `None`. The layout is PyTorch's, gates in
            the order r, z, n.
        h0: `[B, H]`, zero when `None`.
        reset: `[B, T]`, bool; where it is set, the state before the step counts as 0, and no gradient passes through it.
        lengths: `[B]`, int64, 0 to T; later steps are padding, through which the state passes as it is.
        reverse: whether time runs from the last step to the first.

    Returns:
        `h`, `[B, T, H]`, and the state after the last step, `[B, H]`.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit.
    """
    return run("gru", x, weight_ih, weight_hh, bias_ih, bias_hh, h0, None, reset, lengths, reverse)[:2]


def rnn(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    reverse: bool = False,
    nonlinearity: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """One layer of an Elman network, in one direction: `h_t = act(W x_t + b_ih + U h_{t-1} + b_hh)`.

    Args:
        weight_ih: `[H, I]`; weight_hh: `[H, H]`; bias_ih, bias_hh: `[H]`.
        nonlinearity: `"tanh"` or `"relu"`.

    The others, and the results, are those of `gru`.
    """
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity: expected 'tanh' or 'relu', found {nonlinearity!r}")
    kind = f"elman-{nonlinearity}"
    return run(kind, x, weight_ih, weight_hh, bias_ih, bias_hh, h0, None, reset, lengths, reverse)[:2]


def lstm(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    state: tuple[Tensor, Tensor] | None = None,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer of an LSTM, in one direction.

    Args:
        weight_ih: `[4H, I]`; weight_hh: `[4H, H]`; bias_ih, bias_hh: `[4H]`; gates in the order i, f, g, o.
        state: `h0` and `c0`, each `[B, H]`, zero when `None`.

    The others are those of `gru`.

    Returns:
        `h`, `[B, T, H]`, and the state after the last step: `h` and `c`, each `[B, H]`.
    """
    h0, c0 = (None, None) if state is None else state
    h, h_last, c_last = run("lstm", x, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0, reset, lengths, reverse)
    return h, (h_last, c_last)
