"""The number of threads of the kernels, and forks."""

from __future__ import annotations

import os

from riverrun import _riverrun as native

_number: int | None = None


def get_num_threads() -> int:
    """The threads of an operation on NumPy arrays.

    At first `RIVERRUN_NUM_THREADS`, or else the threads that the process may run at the same time. Operations on PyTorch's
    tensors take `torch.get_num_threads()`. Results do not depend on it.
    """
    global _number
    if _number is None:
        value = os.environ.get("RIVERRUN_NUM_THREADS", "")
        if value and not value.isdigit():
            raise ValueError(f"RIVERRUN_NUM_THREADS: expected a number of threads, found {value!r}")
        _number = _checked(int(value)) if value else native.parallelism()
    return _number


def set_num_threads(threads: int) -> None:
    """Sets the threads of an operation on NumPy arrays, from 1 to 1024."""
    global _number
    _number = _checked(int(threads))


def _checked(threads: int) -> int:
    if not 1 <= threads <= 1024:
        raise ValueError(f"threads: expected 1 to 1024, found {threads}")
    return threads


# A fork waits for running kernels, whose locks would stay locked in the child; see the native module.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=native.before_fork,
        after_in_parent=native.after_fork,
        after_in_child=native.after_fork,
    )
