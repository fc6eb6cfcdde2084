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


_PLAIN = (Tensor, torch.nn.Parameter)


def _plain(args) -> bool:
    """Whether nothing stands between a call and its kernel: no subclass of tensors, no mode, no autocast."""
    device = None
    for x in args:
        if isinstance(x, Tensor):
            if type(x) not in _PLAIN:
                return False
            device = device or x.device.type
    return torch._C._len_torch_dispatch_stack() == 0 and device in _DEVICES and not torch.is_autocast_enabled(device)


_DEVICES = ("cpu", "cuda")


def with_transforms(operation, implementation, setup=None, backward=None):
    """Registers gradients and `vmap` for an operation whose results are one tensor or a tuple of them, and which calls
    `implementation`.

    PyTorch does not take the gradients of a custom operation under `torch.func.grad`, only those of an `autograd.Function`;
    the result calls one there. On plain tensors outside of `torch.compile` it calls one of the implementation itself, for
    PyTorch's way to a custom operation takes longer than many a kernel. Elsewhere it calls the operation.
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

    direct = type(f"{function.__name__}_direct", (function,), {"forward": staticmethod(implementation)})

    def call(*args):
        if torch.compiler.is_compiling():
            return operation(*args)
        if torch._C._are_functorch_transforms_active():
            return function.apply(*args)
        if not _plain(args):
            return operation(*args)
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return direct.apply(*args)
        return implementation(*args)

    return call


def in_float32(operation, *devices):
    """Registers the choice under `torch.autocast` of these devices, the CPU without any: the operation runs in float32, and its
    result is float32.

    States are sums over many steps, which float16 and bfloat16 would round at every step.
    """
    for device in devices or ("cpu",):
        operation.register_autocast(device, torch.float32)
