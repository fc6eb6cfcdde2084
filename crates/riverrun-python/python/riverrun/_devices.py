"""What this machine has."""

from __future__ import annotations

import platform

from riverrun import _riverrun as native
from riverrun._threads import get_num_threads


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def devices() -> dict:
    """See `riverrun.devices`."""
    return {
        "device": "cpu",
        "processor": _processor(),
        "simd": native.simd_levels(),
        "parallelism": native.parallelism(),
        "threads": get_num_threads(),
    }
