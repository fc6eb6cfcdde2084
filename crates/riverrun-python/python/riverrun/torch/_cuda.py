"""NVIDIA GPUs: the streams of calls, and cells, whose products outside of the recurrence are PyTorch's."""

from __future__ import annotations

import ctypes
import importlib.util
import warnings
from functools import cache
from pathlib import Path

import torch

from riverrun import _problem as problem
from riverrun import _riverrun as native

#: Kernels take hidden units in groups of so many; units that are missing are added as zeros, which stay zero.
UNITS = 8


def _packages() -> list[Path]:
    """Folders of the packages of NVIDIA, such as `nvidia-cuda-nvrtc`."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]


@cache
def find_compiler() -> None:
    """Makes the compiler of kernels, NVRTC, and its headers known where Python packages have them.

    Packages of the CUDA version that PyTorch was built with come first.
    """
    major = (torch.version.cuda or "13").split(".")[0]
    headers, libraries = [], []
    for root in _packages():
        for folder in (root / f"cu{major}", root / "cuda_runtime", root / "cu13"):
            headers.append(folder / "include")
        for folder in (root / f"cu{major}", root / "cuda_nvrtc", root / "cu13"):
            libraries += sorted((folder / "lib").glob("libnvrtc.so.*"))
    native.cuda_headers([str(folder) for folder in headers if (folder / "cuda_fp16.h").exists()])
    for library in libraries:
        try:
            # The native module then finds it by its name.
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return
        except OSError as error:
            warnings.warn(f"riverrun: {library} cannot be loaded: {error}", RuntimeWarning, stacklevel=2)


@cache
def _allocator(index):
    device = torch.device("cuda", index)

    def allocate(size):
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        return memory, memory.data_ptr()

    return allocate


_current_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)


def place(x):
    """Where a call on this tensor runs, as the native module takes it: device, stream, and how to allocate."""
    find_compiler()
    index = x.device.index
    return index, _current_stream(index), _allocator(index)


def fault(device=None) -> str | None:
    """The operation one of whose kernels on a GPU gave up since the last call, if there is one; it waits for the GPU.

    The cubes of a cell's or a scan's kernel wait for each other. A wait that lasts 20 seconds gives up: results are NaN from there
    on, and this tells them from NaN in the data.

    Args:
        device: of PyTorch; the current one when `None`.
    """
    index = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    torch.cuda.synchronize(index)
    find_compiler()
    return native.cuda_fault(index.index or 0)


class _Arguments:
    """Tensors of a call as attributes of address and elements."""

    def __init__(self, lib, tensors):
        for name, x in tensors.items():
            setattr(self, name, None if x is None else lib.array(x))


def _units(hidden):
    return -(-hidden // UNITS) * UNITS


def saved_of(kind, batch, steps, hidden):
    """The shape of what a cell's forward pass saves, in the type of its input."""
    _, blocks = problem.CELLS[kind]
    return (batch, steps, blocks * _units(hidden)) if blocks > 0 else (0,)


def _padded(x, gates, hidden, width):
    """`[gates * H, ...]` with `width` rows a gate, `[..., H]` with `width` columns for no gates."""
    if x is None or width == hidden:
        return x
    if gates is None:
        return torch.nn.functional.pad(x, (0, width - hidden))
    rest = x.shape[1:]
    blocks = x.reshape(gates, hidden, *rest)
    return torch.nn.functional.pad(blocks, (0, 0) * len(rest) + (0, width - hidden)).reshape(gates * width, *rest)


def _trimmed(x, gates, hidden, width):
    """The inverse of `_padded`."""
    if x is None or width == hidden:
        return x
    if gates is None:
        return x[..., :hidden].contiguous()
    return x.reshape(gates, width, *x.shape[1:])[:, :hidden].reshape(gates * hidden, *x.shape[1:])


class _Cell:
    """The tensors of a cell as the kernels take them."""

    def __init__(self, lib, kind, x, w, u, b_ih, b_hh, h0, c0, reset, lengths):
        sizes, self.dtype = problem.cell(lib, kind, x, w, u, b_ih, b_hh, h0, c0, reset, lengths)
        batch, steps, inputs, self.hidden = sizes
        self.lib, self.kind = lib, kind
        self.gates, self.blocks = problem.CELLS[kind]
        self.width = _units(self.hidden)
        self.sizes = (batch, steps, inputs, self.width)
        self.x = x
        self.w, self.b_ih, self.b_hh = (self.by_gate(each) for each in (w, b_ih, b_hh))
        self.u = lib.dense(self.by_unit(self.by_gate(u)))
        self.b_hh = None if self.b_hh is None else lib.dense(self.b_hh)
        self.h0, self.c0 = (None if each is None else lib.dense(self.by_unit(each)) for each in (h0, c0))
        self.reset = lib.flags(reset, self.dtype)
        # A length that is out of range cannot be refused without waiting for the GPU.
        self.lengths = None if lengths is None else lib.dense(lengths.clamp(0, steps).to(torch.int32))

    def by_gate(self, x):
        return _padded(x, self.gates, self.hidden, self.width)

    def by_unit(self, x):
        return _padded(x, None, self.hidden, self.width)

    def new(self, *blocks):
        """An output `[B, T, blocks * H]`, or `[B, H]` without blocks."""
        batch, steps, _, width = self.sizes
        return self.x.new_empty((batch, steps, *(block * width for block in blocks)) if blocks else (batch, width))

    def trim_unit(self, x):
        return _trimmed(x, None, self.hidden, self.width)

    def trim_gate(self, x):
        return _trimmed(x, self.gates, self.hidden, self.width)


def cell(lib, kind, reverse, save, *arrays):
    """See `riverrun._kernels.cell`; what is saved is for `cell_backward` here."""
    of = _Cell(lib, kind, *arrays)
    lstm = kind == "lstm"
    outputs = {
        "h": of.new(1),
        "h_last": of.new(),
        "c_last": of.new() if lstm else None,
        "saved": of.new(of.blocks) if save and of.blocks > 0 else None,
    }
    inputs = {
        "xg": lib.dense(torch.nn.functional.linear(of.x, of.w, of.b_ih)),
        "u": of.u,
        "b_hh": of.b_hh,
        "h0": of.h0,
        "c0": of.c0,
        "reset": of.reset,
        "lengths": of.lengths,
    }
    native.cuda_cell(lib.place(of.x), of.dtype, kind, of.sizes, reverse, _Arguments(lib, {**inputs, **outputs}))
    h, h_last, c_last, saved = outputs.values()
    if save and saved is None:
        saved = of.x.new_empty(0)
    return of.trim_unit(h), of.trim_unit(h_last), of.trim_unit(c_last), saved


def cell_backward(lib, kind, reverse, wanted, *arrays_and_gradients):
    """See `riverrun._kernels.cell_backward`."""
    *arrays, h, saved, d_h, d_h_last, d_c_last = arrays_and_gradients
    of = _Cell(lib, kind, *arrays)
    w_x, w_w, w_u, w_b_ih, w_b_hh, w_h0, w_c0 = (wants and x is not None for wants, x in zip(wanted, arrays))
    lstm, gru = kind == "lstm", kind == "gru"

    def dense(x):
        return None if x is None else lib.dense(of.by_unit(x))

    inputs = {
        "u_t": lib.dense(of.u.t()),
        "h0": of.h0,
        "c0": of.c0,
        "reset": of.reset,
        "lengths": of.lengths,
        "h": dense(h),
        "saved": lib.dense(saved) if of.blocks > 0 else None,
        "d_h": torch.zeros_like(of.new(1)) if d_h is None else dense(d_h),
        "d_h_last": dense(d_h_last),
        "d_c_last": dense(d_c_last) if lstm else None,
    }
    outputs = {
        "d_a": of.new(of.gates),
        "d_x": of.new(of.gates) if gru else None,
        "before": of.new(1),
        "d_h0": of.new(),
        "d_c0": of.new() if lstm else None,
    }
    native.cuda_cell_back(lib.place(of.x), of.dtype, kind, of.sizes, reverse, _Arguments(lib, {**inputs, **outputs}))
    d_a, d_xg, before, d_h0, d_c0 = outputs.values()
    d_xg = d_a if d_xg is None else d_xg
    by_row, by_row_xg = d_a.flatten(0, 1), d_xg.flatten(0, 1)

    def bias(d):
        return of.trim_gate(d.sum(0, dtype=torch.float32).to(d.dtype))

    return [
        (d_xg @ of.w).reshape(of.x.shape) if w_x else None,
        of.trim_gate(by_row_xg.t() @ of.x.flatten(0, 1)) if w_w else None,
        of.trim_unit(of.trim_gate(by_row.t() @ before.flatten(0, 1))) if w_u else None,
        bias(by_row_xg) if w_b_ih else None,
        bias(by_row) if w_b_hh else None,
        of.trim_unit(d_h0) if w_h0 else None,
        of.trim_unit(d_c0) if w_c0 else None,
    ]


def under_autocast(x, *tensors):
    """The tensors in the type of `torch.autocast("cuda")`, if it is on and `x` is on a GPU."""
    if x.device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return (x, *tensors)
    dtype = torch.get_autocast_dtype("cuda")

    def cast(y):
        return y.to(dtype) if y is not None and y.is_floating_point() and y.dtype != torch.float64 else y

    return tuple(cast(y) for y in (x, *tensors))
