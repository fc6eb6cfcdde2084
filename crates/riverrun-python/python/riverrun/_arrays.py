"""NumPy's arrays, and what NumPy can view, as arrays of the kernels; see `riverrun._kernels`."""

from __future__ import annotations

from riverrun._threads import get_num_threads


def place(_) -> int:
    """Where a call runs: the number of threads."""
    return get_num_threads()


def on_gpu(_) -> bool:
    """Never."""
    return False


def dtype(x) -> str:
    """The name of the element type, whatever its byte order."""
    return x.dtype.name if x.dtype.isnative else str(x.dtype)


def asarray(x):
    """An array that shares the memory of anything with DLPack on the CPU or the buffer protocol; lists are copied."""
    import numpy as np

    if isinstance(x, np.ndarray):
        return x
    device = getattr(x, "__dlpack_device__", None)
    if device is None:
        return np.asarray(x)
    kind, index = device()
    # DLPack's number of CPU memory.
    if int(kind) != 1:
        raise ValueError(
            f"expected an array on the CPU, found one on DLPack's device ({int(kind)}, {index}): arrays run on the CPU, tensors of PyTorch on GPUs too"
        )
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        raise ValueError(f"an array of the type {type(x).__name__} cannot be viewed by NumPy: {error}") from error


def empty(like, shape, name):
    """A new contiguous array; types that NumPy does not have are those of `like`."""
    import numpy as np

    return np.empty(shape, dtype=like.dtype if like.dtype.name == name else name)


def dense(x):
    """The array, or a contiguous and aligned copy."""
    import numpy as np

    return np.require(x, requirements="CA")


def rows(x):
    """An array `[B, T, D]` with contiguous channels and strides that are whole elements from 0 on, or a copy."""
    size = x.itemsize
    fits = x.shape[2] == 1 or x.strides[2] == size
    if fits and x.flags.aligned and all(stride >= 0 and stride % size == 0 for stride in x.strides[:2]):
        return x
    return dense(x.copy())


states = rows


def flags(x, _):
    """Booleans, or a contiguous copy."""
    return None if x is None else dense(x)


def _address(x) -> int:
    return x.__array_interface__["data"][0]


def array(x):
    """Address and elements."""
    return _address(x), x.size


def view(x):
    """Address, and the strides of sequences and steps."""
    return _address(x), x.strides[0] // x.itemsize, x.strides[1] // x.itemsize


def columns(x, index, width):
    """The view of the channels from `index * width` on."""
    address, batch, step = view(x)
    return address + index * width * x.itemsize, batch, step
