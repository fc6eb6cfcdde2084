#!/usr/bin/env python3
"""Compiles CUDA C++ files with NVRTC, as the CUDA runtime of CubeCL does; needs no card.

    nvrtc.py <folder with nvidia/cu13> <folder with <capability>/**/*.cu> <capability> ...

Prints the files that fail with their log; the exit code is 1 if there are any.
"""
import ctypes
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def library(cuda):
    folder = Path(cuda) / "lib"
    nvrtc = ctypes.CDLL(str(next(folder.glob("libnvrtc.so.*"))))
    for name in ("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"):
        getattr(nvrtc, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return nvrtc


def compile_file(job):
    """The log where the file does not compile, otherwise nothing."""
    cuda, path, capability = job
    nvrtc = library(cuda)
    # CubeCL asks for the features of an architecture from 9.0 on.
    suffix = "a" if capability >= 90 else ""
    options = [
        f"--gpu-architecture=sm_{capability}{suffix}",
        f"--include-path={cuda}/include",
        f"--include-path={cuda}/include/cccl",
        # The optimiser of the machine code takes most of the time and finds no more errors.
        "--ptxas-options=-O1",
    ]
    program = ctypes.c_void_p()
    source = Path(path).read_bytes()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, path.encode(), 0, None, None)
    if made != 0:
        return f"no program: {made}"
    texts = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    if nvrtc.nvrtcCompileProgram(program, len(options), texts) == 0:
        return None
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace") or "failed without a log"


def main():
    cuda, sources, *capabilities = sys.argv[1:]
    jobs = []
    for capability in map(int, capabilities):
        files = sorted((Path(sources) / str(capability)).rglob("*.cu"))
        if not files:
            sys.exit(f"no sources for {capability} in {sources}")
        jobs += [(cuda, str(file), capability) for file in files]
    start, failures = time.monotonic(), 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for (_, path, _), log in zip(jobs, pool.map(compile_file, jobs)):
            if log is not None:
                failures += 1
                print(f"{path}:\n{log}")
    seconds = time.monotonic() - start
    print(f"NVRTC: {len(jobs) - failures} of {len(jobs)} files compile, {seconds:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
