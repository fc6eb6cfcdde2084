"""RMSNorm and cross-entropy as PyTorch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from riverrun import _kernels, _problem
from riverrun.torch import _tensors
from riverrun.torch._transforms import in_float32, with_transforms


def _rms_norm_now(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _kernels.rms_norm(_tensors, x, weight, eps)


_rms_norm = torch.library.custom_op("riverrun::rms_norm", mutates_args=())(_rms_norm_now)


@_rms_norm.register_fake
def _(x, weight, eps):
    _problem.rms_norm(_tensors, x, weight)
    return x.new_empty(x.shape)


def _rms_norm_backward_now(x: Tensor, weight: Tensor, eps: float, d_y: Tensor) -> tuple[Tensor, Tensor]:
    return _kernels.rms_norm_backward(_tensors, x, weight, eps, d_y)


_rms_norm_backward = torch.library.custom_op("riverrun::rms_norm_backward", mutates_args=())(_rms_norm_backward_now)


@_rms_norm_backward.register_fake
def _(x, weight, eps, d_y):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _setup_norm(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _norm_back(ctx, d_y):
    x, weight = ctx.saved_tensors
    return (*_norm_gradients(x, weight, ctx.eps, d_y), None)


_normalised = with_transforms(_rms_norm, _rms_norm_now, _setup_norm, _norm_back)
_norm_gradients = with_transforms(_rms_norm_backward, _rms_norm_backward_now)
in_float32(_rms_norm, "cpu", "cuda")


def _cross_entropy_now(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _kernels.cross_entropy(_tensors, logits, targets)


_cross_entropy = torch.library.custom_op("riverrun::cross_entropy", mutates_args=())(_cross_entropy_now)


@_cross_entropy.register_fake
def _(logits, targets):
    (rows, _), dtype = _problem.cross_entropy(_tensors, logits, targets)
    arithmetic = getattr(torch, _problem.ARITHMETIC[dtype])
    return tuple(logits.new_empty(shape, dtype=arithmetic) for shape in ((), (rows,), ()))


def _cross_entropy_backward_now(logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor) -> Tensor:
    return _kernels.cross_entropy_backward(_tensors, logits, targets, lse, scale)


_cross_entropy_backward = torch.library.custom_op("riverrun::cross_entropy_backward", mutates_args=())(_cross_entropy_backward_now)


@_cross_entropy_backward.register_fake
def _(logits, targets, lse, scale):
    return logits.new_empty(logits.shape)


def _setup_loss(ctx, inputs, output):
    logits, targets = inputs
    _, lse, weight = output
    ctx.save_for_backward(logits, targets, lse, weight)
    ctx.mark_non_differentiable(lse, weight)


def _loss_back(ctx, d_loss, *_):
    logits, targets, lse, weight = ctx.saved_tensors
    return _loss_gradients(logits, targets, lse, d_loss * weight), None


_loss = with_transforms(_cross_entropy, _cross_entropy_now, _setup_loss, _loss_back)
_loss_gradients = with_transforms(_cross_entropy_backward, _cross_entropy_backward_now)
in_float32(_cross_entropy, "cpu", "cuda")


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """`x * weight / sqrt(mean(x²) + eps)` over the last dimension.

    Args:
        x: `[..., D]`, float32, float64, float16 or bfloat16.
        weight: `[D]`, of the same dtype.
        eps: added to the mean square.

    Returns:
        A tensor of the shape and dtype of `x`. Sums are in float32, in float64 for float64.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit.

    Source: Zhang & Sennrich, *Root Mean Square Layer Normalization* (2019), equation 4.
    """
    _tensors.expect_place(x=x, weight=weight)
    return _normalised(x, weight, float(eps))


def cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """The mean of `logsumexp(logits) - logits[target]` over the rows that count.

    Args:
        logits: `[..., classes]`, float32, float64, float16 or bfloat16. They are read once and copied to no wider type.
        targets: `[...]`, integers below `classes`. A row with a negative target, or with `ignore_index`, does not count.
        ignore_index: see above.

    Returns:
        One number, float32 (float64 for float64); NaN if no row counts.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit; a target that is no class.
    """
    _tensors.expect_place(logits=logits, targets=targets)
    if logits.dim() == 0:
        raise ValueError("logits: expected shape [..., classes], found []")
    _problem.expect_shape("targets", targets, logits.shape[:-1])
    targets = targets.to(torch.int64)
    if ignore_index >= 0:
        targets = targets.masked_fill(targets == ignore_index, -1)
    return _loss(logits.reshape(targets.numel(), logits.shape[-1]), targets.reshape(-1))[0]
