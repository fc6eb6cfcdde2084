"""PyTorch's tensors as arrays of the kernels; see `riverrun._kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.bool: "bool",
    torch.int64: "int64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}

#: Operations take PyTorch's number of threads: one in the workers of a DataLoader.
threads = torch.get_num_threads


def dtype(x: Tensor) -> str:
    """The name of the element type."""
    return _NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")


def empty(like: Tensor, shape, name: str) -> Tensor:
    """A new contiguous tensor."""
    return torch.empty(shape, dtype=_TYPES[name], device=like.device)


def expect_cpu(**tensors: Tensor | None) -> None:
    """Refuses tensors that are not on the CPU, or not dense.

    Raises:
        ValueError: it names the tensor and its device.
    """
    for name, x in tensors.items():
        if x is None:
            continue
        if x.device.type != "cpu":
            raise ValueError(f"{name}: expected a tensor on the CPU, found one on {x.device}: this build has CPU kernels only")
        if x.layout is not torch.strided:
            raise ValueError(f"{name}: expected a dense tensor, found the layout {x.layout}")


def _real(x: Tensor) -> Tensor:
    # Views of negated data keep the sign apart from the memory.
    return x.resolve_neg() if x.is_neg() else x


def dense(x: Tensor) -> Tensor:
    """The tensor, or a contiguous copy."""
    return _real(x).contiguous()


def rows(x: Tensor) -> Tensor:
    """A tensor `[B, T, D]` with contiguous channels, or a copy."""
    x = _real(x)
    return x if x.shape[2] == 1 or x.stride(2) == 1 else x.contiguous()


def array(x: Tensor) -> tuple[int, int]:
    """Address and elements."""
    return x.data_ptr(), x.numel()


def view(x: Tensor) -> tuple[int, int, int]:
    """Address, and the strides of sequences and steps."""
    return x.data_ptr(), x.stride(0), x.stride(1)


def columns(x: Tensor, index: int, width: int) -> tuple[int, int, int]:
    """The view of the channels from `index * width` on."""
    return x.data_ptr() + index * width * x.element_size(), x.stride(0), x.stride(1)
