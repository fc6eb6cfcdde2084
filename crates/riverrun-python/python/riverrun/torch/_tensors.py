"""PyTorch's tensors as arrays of the kernels; see `riverrun._kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from riverrun.torch import _cuda

_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.bool: "bool",
    torch.int64: "int64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}

#: Kernels on a GPU read vectors of so many bytes.
_ALIGNMENT = 16


def place(x: Tensor):
    """Where a call runs: PyTorch's number of threads, which is one in the workers of a DataLoader, or a stream of a GPU."""
    return _cuda.place(x) if x.device.type == "cuda" else torch.get_num_threads()


def on_gpu(x: Tensor) -> bool:
    """Whether the call runs on a GPU."""
    return x.device.type == "cuda"


def dtype(x: Tensor) -> str:
    """The name of the element type."""
    return _NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")


def empty(like: Tensor, shape, name: str) -> Tensor:
    """A new contiguous tensor."""
    return torch.empty(shape, dtype=_TYPES[name], device=like.device)


def expect_place(**tensors: Tensor | None) -> None:
    """Refuses tensors that are not on one CPU or NVIDIA GPU, or not dense.

    Raises:
        ValueError: it names the tensor and its device.
    """
    given = [x for x in tensors.values() if x is not None]
    index = given[0].get_device()
    if all(
        x.get_device() == index and x.layout is torch.strided and (x.is_cpu or x.is_cuda) for x in given
    ) and (index < 0 or torch.version.cuda is not None):
        return
    first = None
    for name, x in tensors.items():
        if x is None:
            continue
        if x.device.type not in ("cpu", "cuda") or (x.device.type == "cuda" and torch.version.cuda is None):
            raise ValueError(f"{name}: expected a tensor on the CPU or an NVIDIA GPU, found one on {x.device}")
        first = first or (name, x.device)
        if x.device != first[1]:
            raise ValueError(f"{name}: expected a tensor on {first[1]}, as {first[0]} is, found one on {x.device}")
        if x.layout is not torch.strided:
            raise ValueError(f"{name}: expected a dense tensor, found the layout {x.layout}")


def _real(x: Tensor) -> Tensor:
    # Views of negated data keep the sign apart from the memory.
    return x.resolve_neg() if x.is_neg() else x


def _aligned(x: Tensor) -> Tensor:
    return x.clone() if on_gpu(x) and x.data_ptr() % _ALIGNMENT != 0 else x


def dense(x: Tensor) -> Tensor:
    """The tensor, or a contiguous copy."""
    return _aligned(_real(x).contiguous())


def rows(x: Tensor) -> Tensor:
    """A tensor `[B, T, D]` with contiguous channels, or a copy."""
    x = _real(x)
    return _aligned(x if x.shape[2] == 1 or x.stride(2) == 1 else x.contiguous())


def states(x: Tensor) -> Tensor:
    """A tensor `[B, T, D]` of states or their gradients: as `rows`, on a GPU contiguous."""
    return dense(x) if on_gpu(x) else rows(x)


def flags(x: Tensor | None, name: str) -> Tensor | None:
    """Booleans as the kernels take them: on a GPU in the type of the other tensors."""
    if x is None:
        return None
    return dense(x.to(_TYPES[name]) if on_gpu(x) else x)


def array(x: Tensor) -> tuple[int, int]:
    """Address and elements."""
    return x.data_ptr(), x.numel()


def view(x: Tensor) -> tuple[int, int, int]:
    """Address, and the strides of sequences and steps."""
    return x.data_ptr(), x.stride(0), x.stride(1)


def columns(x: Tensor, index: int, width: int) -> tuple[int, int, int]:
    """The view of the channels from `index * width` on."""
    return x.data_ptr() + index * width * x.element_size(), x.stride(0), x.stride(1)
