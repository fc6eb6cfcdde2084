"""riverrun: recurrences, cells, matrix states, norms and losses on fast kernels.

The operations here take NumPy arrays and anything that NumPy can view without a copy: DLPack on the CPU, the buffer protocol.
`riverrun.torch` has the same operations for PyTorch's tensors, on the CPU and on NVIDIA GPUs, with gradients, and layers. NumPy is imported by the first
operation, PyTorch by `riverrun.torch`.
"""

from riverrun._numpy import (
    cross_entropy,
    gated_delta_rule,
    gla,
    gru,
    kda,
    linear_scan,
    linear_scan_backward,
    lstm,
    min_gru,
    min_lstm,
    rg_lru,
    rms_norm,
    rnn,
)
from riverrun._problem import GATES
from riverrun._riverrun import __version__
from riverrun._threads import get_num_threads, set_num_threads

__all__ = [
    "GATES",
    "__version__",
    "cross_entropy",
    "devices",
    "gated_delta_rule",
    "get_num_threads",
    "gla",
    "gru",
    "kda",
    "linear_scan",
    "linear_scan_backward",
    "lstm",
    "min_gru",
    "min_lstm",
    "rg_lru",
    "rms_norm",
    "rnn",
    "set_num_threads",
    "verify",
]


def devices():
    """This machine as the kernels see it: a dictionary with `device`, `simd` (the sets of vector instructions, the one in use
    first), `parallelism` (threads that the process may run at the same time), `threads` (those of an operation) and `gpus`: where
    PyTorch sees NVIDIA GPUs, their names and the compiler of their kernels, or what is `missing`."""
    from riverrun._devices import devices

    return devices()


def verify(seed=0, device="cpu"):
    """Checks every operation on this machine against a float64 reference: results, gradients, and equal bits of two runs.

    Args:
        seed: of the data.
        device: `"cpu"`, or `"cuda:0"` and so on, which needs PyTorch.

    Returns:
        `riverrun._verify.Row`s, one a check; `row.passed` tells.
    """
    from riverrun._verify import verify

    return verify(seed, device)
