#!/usr/bin/env python3
"""Operations on rows and linear layers in PyTorch, beside `riverrun bench activation`, `bench norm` and `bench linear`.

    benches/peers/rows.py [--ops gelu,swiglu,linear-gelu,...] [--dtypes bf16,f32] [--budget 0.2] [--json FILE]

Each operation is timed as PyTorch has it and through torch.compile, forward, and where riverrun is timed so, forward and backward
together, by calls in a row in a CUDA graph. A result that is not that of float64 is not timed. Shapes are ROWSxWIDTH, those of linear layers
ROWSxINxOUT.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

ROWS = "4096x1024,8192x2048,16384x4096"
NORMS = "1024x768,2048x1024,4096x2048,16384x4096"
LINEAR = "512x1024x2048,1024x2048x4096,2048x4096x8192"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def gelu(x):
    return F.gelu(x, approximate="tanh")


# What is called, its shapes, and its arguments beside x by their shapes.
OPS = {
    "gelu": (gelu, ROWS, lambda rows, width: []),
    "geglu": (lambda x, f: gelu(x) * f, ROWS, lambda rows, width: [(rows, width)]),
    "silu": (F.silu, ROWS, lambda rows, width: []),
    "swiglu": (lambda x, f: F.silu(x) * f, ROWS, lambda rows, width: [(rows, width)]),
    "rms-norm": (lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), NORMS, lambda rows, width: [(width,)]),
    "layer-norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), NORMS, lambda rows, width: [(width,), (width,)]),
    "linear": (lambda x, w, b: F.linear(x, w, b), LINEAR, lambda rows, width, out: [(out, width), (out,)]),
    "linear-gelu": (lambda x, w, b: gelu(F.linear(x, w, b)), LINEAR, lambda rows, width, out: [(out, width), (out,)]),
}


def arguments(shape, others, dtype, grad):
    scale = shape[-1] ** -0.5 if len(shape) == 3 else 1.0
    draw = lambda sizes: ((2 * torch.rand(sizes, device="cuda") - 1) * scale).to(dtype).requires_grad_(grad)
    return [draw(shape[:2]), *(draw(sizes) for sizes in others(*shape))]


def error(call, shape, others, dtype):
    """The largest error of y and of every gradient, relative to the largest number of each."""
    few = (min(shape[0], 64), *shape[1:])
    given = arguments(few, others, dtype, True)
    exact = [x.detach().double().requires_grad_() for x in given]
    worst = 0.0
    found = [y := call(*given), *torch.autograd.grad(y, given, torch.ones_like(y))]
    truth = [y := call(*exact), *torch.autograd.grad(y, exact, torch.ones_like(y))]
    for found, truth in zip(found, truth):
        worst = max(worst, ((found.double() - truth).abs().max() / truth.abs().max()).item())
    return worst


def timed(call, budget):
    """Seconds of one call, of many in a CUDA graph, as medians with half the distance of the 20 and 80 % quantiles."""
    calls = 20
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    aside.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    seconds, end = [], time.perf_counter() + budget
    while time.perf_counter() < end or len(seconds) < 5:
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / calls)
    seconds.sort()
    at = lambda part: seconds[int(part * (len(seconds) - 1))]
    return statistics.median(seconds), (at(0.8) - at(0.2)) / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--json")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    found = []
    for name in args.ops.split(","):
        call, shapes, others = OPS[name]
        for dtype in args.dtypes.split(","):
            most = {"f32": 1e-4, "bf16": 4e-2, "f16": 5e-3}[dtype]
            for word in shapes.split(","):
                shape = tuple(map(int, word.split("x")))
                for form in ("eager", "compiled"):
                    torch._dynamo.reset()
                    wrapped = call if form == "eager" else torch.compile(call, dynamic=False)
                    off = error(wrapped, shape, others, DTYPES[dtype])
                    if not off <= most:
                        print(f"{name} {dtype} {word} {form}: wrong, error {off:.1e}")
                        continue
                    given = arguments(shape, others, DTYPES[dtype], False)
                    with torch.no_grad():
                        forward = timed(lambda: wrapped(*given), args.budget)
                    given = arguments(shape, others, DTYPES[dtype], True)
                    d = torch.ones_like(wrapped(*given))
                    both = timed(lambda: torch.autograd.grad(wrapped(*given), given, d), args.budget)
                    print(f"{name:12} {dtype:5} {word:16} {form:9} forward {1e3 * forward[0]:8.4f} ms +- {100 * forward[1] / forward[0]:4.1f} %  "
                          f"both ways {1e3 * both[0]:8.4f} ms +- {100 * both[1] / both[0]:4.1f} %", flush=True)
                    found.append({"op": name, "dtype": dtype, "shape": word, "form": form, "forward": forward, "both": both})
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
