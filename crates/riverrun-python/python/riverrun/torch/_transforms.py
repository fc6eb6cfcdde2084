"""`torch.func` and `torch.autocast` of the operations."""

from __future__ import annotations

import torch
from torch import Tensor


def active() -> bool:
    """Whether a transform of `torch.func` runs, such as `vmap` or `grad`."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _by_slices(name, operation, info, in_dims, args):
    """`vmap` as one call a slice: results are bit for bit those of a loop over the slices."""
    if info.batch_size == 0:
        raise ValueError(f"{name}: vmap over a dimension of size 0, which has no results to take shapes from")

    def result(index):
        slices = [
            x if dim is None or not isinstance(x, Tensor) else x.select(dim, index) for x, dim in zip(args, in_dims)
        ]
        return operation(*slices)

    results = [result(index) for index in range(info.batch_size)]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    stacked = tuple(torch.stack(each) for each in zip(*results))
    return stacked, tuple(0 for _ in stacked)


def with_transforms(operation, setup=None, backward=None):
    """Registers gradients and `vmap` for an operation whose results are one tensor or a tuple of them.

    PyTorch does not take the gradients of a custom operation under `torch.func.grad`, only those of an `autograd.Function`;
    the result calls one there, and the operation elsewhere.
    """
    if backward is not None:
        operation.register_autograd(backward, setup_context=setup)

    def mapped(info, in_dims, *args):
        return _by_slices(operation._qualname, call, info, in_dims, args)

    operation.register_vmap(mapped)

    def refused(ctx, *_):
        raise RuntimeError(f"{operation._qualname} has no derivative")

    members = {
        "forward": staticmethod(operation),
        "setup_context": staticmethod(setup or (lambda ctx, inputs, output: None)),
        "backward": staticmethod(backward or refused),
        "vmap": staticmethod(mapped),
    }
    function = type(operation._opoverload._name.replace("::", "_"), (torch.autograd.Function,), members)

    def call(*args):
        return function.apply(*args) if active() else operation(*args)

    return call


def in_float32(operation):
    """Registers the choice under `torch.autocast`: the operation runs in float32, and its result is float32.

    States are sums over many steps, which float16 and bfloat16 would round at every step.
    """
    operation.register_autocast("cpu", torch.float32)
