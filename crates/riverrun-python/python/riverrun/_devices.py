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


def _gpus() -> list:
    """The NVIDIA GPUs that PyTorch sees, if it is there."""
    try:
        import torch
    except ImportError:
        return []
    if torch.version.cuda is None or not torch.cuda.is_available():
        return []
    from riverrun.torch import _cuda

    _cuda.find_compiler()
    found = []
    for index in range(torch.cuda.device_count()):
        gpu = {"device": f"cuda:{index}", "name": torch.cuda.get_device_name(index)}
        try:
            capability, multiprocessors, compiler = native.cuda_device(index)
            gpu |= {
                "capability": f"{capability // 10}.{capability % 10}",
                "multiprocessors": multiprocessors,
                "compiler": compiler,
            }
        except RuntimeError as error:
            gpu["missing"] = str(error)
        found.append(gpu)
    return found


def devices() -> dict:
    """See `riverrun.devices`."""
    return {
        "device": "cpu",
        "processor": _processor(),
        "simd": native.simd_levels(),
        "parallelism": native.parallelism(),
        "threads": get_num_threads(),
        "gpus": _gpus(),
    }
