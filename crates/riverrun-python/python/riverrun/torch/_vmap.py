"""`torch.func.vmap` of the operations: one call a slice.

The sizes of every call are those without vmap, so results are bit for bit those of a loop over the slices.
"""

from __future__ import annotations

import torch
from torch import Tensor


def by_slices(operation):
    """Registers the rule for an operation whose results are one tensor or a tuple of them."""

    def rule(info, in_dims, *args):
        def result(index):
            slices = [
                x if dim is None or not isinstance(x, Tensor) else x.select(dim, index)
                for x, dim in zip(args, in_dims)
            ]
            return operation(*slices)

        if info.batch_size == 0:
            raise ValueError(f"{operation._qualname}: vmap over a dimension of size 0, which has no results to take shapes from")
        results = [result(index) for index in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = tuple(torch.stack(each) for each in zip(*results))
        return stacked, tuple(0 for _ in stacked)

    operation.register_vmap(rule)


def in_float32(operation):
    """Registers the choice under `torch.autocast`: the operation runs in float32, and its result is float32.

    States are sums over many steps, which float16 and bfloat16 would round at every step.
    """
    operation.register_autocast("cpu", torch.float32)
