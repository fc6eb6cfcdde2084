"""The native module: kernels on addresses. It is not for users; see `riverrun` and `riverrun.torch`.

An `Array` is the address of a contiguous array and the number of its elements. A `View` is the address of `[B, T, D]` with
contiguous channels, and the elements from sequence to sequence and from step to step. `arguments`, `form` and gradients are
objects with these as attributes. Every address must stay valid during the call, and every result must be an array of its own.
The GIL is released while a kernel runs. All functions raise `ValueError` for sizes that do not fit.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Array: TypeAlias = tuple[int, int]
View: TypeAlias = tuple[int, int, int]
# Threads of the CPU; or the number of a GPU, the address of a stream, and a function that allocates bytes on that GPU for work on
# the stream and returns an object that owns them, and their address.
Stream: TypeAlias = tuple[int, int, Callable[[int], tuple[Any, int]]]
Place: TypeAlias = int | Stream

__version__: str

def scan(
    place: Place,
    dtype: str,
    gate: str,
    shape: Sequence[int],
    reverse: bool,
    inputs: Sequence[View],
    h0: Array | None,
    reset: Array | None,
    h: Array,
) -> None: ...
def scan_back(
    place: Place,
    dtype: str,
    gate: str,
    shape: Sequence[int],
    reverse: bool,
    inputs: Sequence[View],
    h0: Array | None,
    reset: Array | None,
    h: View,
    d_h: View,
    d_inputs: Sequence[Array],
    d_h0: Array | None,
) -> None: ...
def cell(
    threads: int,
    dtype: str,
    cell: str,
    sizes: Sequence[int],
    reverse: bool,
    arguments: Any,
    h: Array,
    h_last: Array,
    c_last: Array | None,
    saved: Array | None,
) -> None: ...
def cell_back(
    threads: int,
    dtype: str,
    cell: str,
    sizes: Sequence[int],
    reverse: bool,
    arguments: Any,
    h: Array,
    saved: Array,
    d_h: Array | None,
    d_h_last: Array | None,
    d_c_last: Array | None,
    d: Any,
) -> None: ...
def matrix_state(place: Place, dtype: str, form: Any, arguments: Any, o: Array, last: Array) -> None: ...
def matrix_state_back(
    place: Place, dtype: str, form: Any, arguments: Any, d_o: Array, d_last: Array | None, into: Any
) -> None: ...
def rms_norm(place: Place, dtype: str, epsilon: float, x: Array, weight: Array, y: Array) -> None: ...
def rms_norm_back(
    place: Place, dtype: str, epsilon: float, x: Array, weight: Array, d_y: Array, d_x: Array, d_weight: Array
) -> None: ...
def cross_entropy(
    place: Place, dtype: str, vocab: int, x: Array, targets: Array, lse: Array, loss: Array, weight: Array
) -> None: ...
def cross_entropy_back(
    place: Place, dtype: str, vocab: int, x: Array, targets: Array, lse: Array, scale: Array, d_x: Array
) -> None: ...
def cuda_cell(stream: Stream, dtype: str, cell: str, sizes: Sequence[int], reverse: bool, arrays: Any) -> None: ...
def cuda_cell_back(stream: Stream, dtype: str, cell: str, sizes: Sequence[int], reverse: bool, arrays: Any) -> None: ...
def cuda_device(device: int) -> tuple[int, int, str]: ...
def cuda_fault(device: int) -> str | None: ...
def cuda_headers(folders: Sequence[str]) -> None: ...
def before_fork() -> None: ...
def after_fork() -> None: ...
def simd_levels() -> list[str]: ...
def parallelism() -> int: ...
