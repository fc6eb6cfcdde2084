#!/usr/bin/env python3
"""Attention in PyTorch beside `riverrun bench attention` on the same machine: scaled_dot_product_attention by each of its
backends, and FlexAttention, compiled, for windows.

The forward pass is timed without gradients, the backward pass alone, by calls in a row. Every peer is first held against
float64 on a shorter problem. Shapes are words as in riverrun: BxHxTxD, BxH/KxTxD with K key heads, BxHxTxD@W with a window of W
steps. Queries see the keys up to their own position; with --full, and without a window, every key.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

GPU = "2x8x512x64,4x12x1024x64,16x12x1024x64,8x16x2048x64,2x16x4096x128,2x16x16384x128,2x16x16384x128@1024,4x10/1x8192x256,4x10/1x8192x256@2048"
CPU = "2x8x512x64,4x8x512x64,4x12x1024x64,1x8x2048x64,1x8x2048x64@256,8x16x2048x64"
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# One rounding of storage.
EPSILON = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def parse(word):
    found = re.fullmatch(r"(\d+)x(\d+)(?:/(\d+))?x(\d+)x(\d+)(?:@(\d+))?", word)
    if not found:
        sys.exit(f"`{word}` is not a shape")
    batch, heads, key_heads, steps, dim, window = (int(n) if n else 0 for n in found.groups())
    return batch, heads, key_heads or heads, steps, dim, window


def backend(which):
    def call(q, k, v, causal, window):
        if window:
            raise RuntimeError("has no window")
        with sdpa_kernel(which):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return call


class Flex:
    """FlexAttention with a mask of blocks, made once for each length."""

    def __init__(self, device):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        self.call, self.mask, self.device, self.masks = torch.compile(flex_attention), create_block_mask, device, {}

    def __call__(self, q, k, v, causal, window):
        steps = q.shape[2]
        if (steps, window) not in self.masks:
            seen = lambda b, h, i, j: (i >= j) & (i - j < (window or steps))
            self.masks[steps, window] = self.mask(seen, None, None, steps, steps, device=self.device) if causal else None
        mask = self.masks[steps, window]
        return self.call(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def peers(device):
    found = {"sdpa": scaled}
    named = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
    for name, which in named.items():
        if hasattr(SDPBackend, which) and (device.type == "cuda" or name in ("flash", "math")):
            found[name] = backend(getattr(SDPBackend, which))
    found["flex"] = Flex(device)
    return found


def scaled(q, k, v, causal, window):
    """PyTorch's own choice of a backend; a window is a mask in memory."""
    mask = None
    if window:
        at = torch.arange(q.shape[2], device=q.device)
        apart = at[:, None] - at[None, :]
        mask = (apart >= 0) & (apart < window)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=q.shape[1] != k.shape[1])


def data(shape, dtype, device, seed=0):
    batch, heads, key_heads, steps, dim, _ = shape
    generator = torch.Generator(device).manual_seed(seed)
    draw = lambda heads: torch.randn(batch, steps, heads, dim, generator=generator, device=device).to(dtype)
    # Memory [B, T, H, D], as riverrun has it.
    return [draw(n).transpose(1, 2).detach().requires_grad_() for n in (heads, key_heads, key_heads)]


def check(call, shape, causal, dtype, device):
    """Holds a peer against float64 on a shorter problem of one sequence."""
    _, heads, key_heads, steps, dim, window = shape
    steps = min(steps, 256)
    small = (1, heads, key_heads, steps, dim, min(window, steps // 3 + 1))
    inputs = data(small, dtype, device, 1)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    group = heads // key_heads
    q, k, v = exact[0], *(x.repeat_interleave(group, 1) for x in exact[1:])
    scores = q @ k.transpose(2, 3) / dim**0.5
    at = torch.arange(steps, device=device)
    apart = at[:, None] - at[None, :]
    seen = torch.ones_like(apart, dtype=torch.bool)
    if causal:
        seen &= apart >= 0
    if small[5]:
        seen &= apart < small[5]
    truth = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
    found = call(*inputs, causal, small[5])
    g = torch.randn_like(found)
    found = [found, *torch.autograd.grad(found, inputs, g)]
    truth = [truth, *torch.autograd.grad(truth, exact, g.double())]
    error = max(((x.double() - y).abs().max() / y.abs().max()).item() for x, y in zip(found, truth))
    # TF32 where PyTorch takes it counts as f32; the rounding of a long sum grows slowly.
    if not error <= 16 * EPSILON[dtype] * steps**0.5:
        raise RuntimeError(f"wrong by {error:.1e}")


def timed(call, device, budget):
    def row(calls):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3 / calls
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    for _ in range(2):
        row(1)
    calls = max(1, min(64, round(1e-3 / row(1))))
    begin, all_times = time.perf_counter(), []
    while len(all_times) < 7 or time.perf_counter() - begin < budget:
        all_times.append(row(calls))
    all_times.sort()
    at = lambda part: all_times[round((len(all_times) - 1) * part)]
    return {"median": statistics.median(all_times), "low": at(0.2), "high": at(0.8), "samples": len(all_times)}


def pairs(steps, causal, window):
    """Pairs of a query and a key that it sees."""
    if not causal:
        return steps * steps
    window = min(window or steps, steps)
    return window * (window + 1) // 2 + (steps - window) * window


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", help="words as above, separated by commas")
    parser.add_argument("--dtypes", help="f32, f16, bf16, separated by commas")
    parser.add_argument("--full", action="store_true", help="every query sees every key")
    parser.add_argument("--peers", help="only these, separated by commas")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each timing")
    parser.add_argument("--json", help="write the results here too")
    args = parser.parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    shapes = (args.shapes or (GPU if on_gpu else CPU)).split(",")
    dtypes = (args.dtypes or ("bf16" if on_gpu else "f32")).split(",")
    wanted = args.peers.split(",") if args.peers else None
    name = torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    cudnn = f", cuDNN {torch.backends.cudnn.version()}" if on_gpu else ""
    version = f"PyTorch {torch.__version__}{cudnn}"
    print(f"{name}; {version}")
    rows, skipped = [], []

    def measure(peer, call, dtype_name, word):
        shape = parse(word)
        batch, heads, key_heads, steps, dim, window = shape
        if peer == "flex" and not (window or wanted):
            raise RuntimeError("compiled for windows only, unless it is named")
        dtype, causal = DTYPES[dtype_name], bool(window) or not args.full
        if peer in ("sdpa", "math") and on_gpu and heads * batch * steps * steps > 1 << 30:
            # The matrix of scores, kept for the backward pass several times over.
            if peer == "math" or window:
                raise RuntimeError("needs the scores in memory")
        check(call, shape, causal, dtype, device)
        inputs = data(shape, dtype, device)

        def forward():
            with torch.no_grad():
                call(*inputs, causal, window)

        o = call(*inputs, causal, window)
        g = torch.randn_like(o)
        passes = {"forward": forward, "backward": lambda: torch.autograd.grad(o, inputs, g, retain_graph=True)}
        for pass_name, once in passes.items():
            timing = timed(once, device, args.budget)
            products = 5 if pass_name == "backward" else 2
            rate = 2 * products * batch * heads * dim * pairs(steps, causal, window) / timing["median"]
            row = dict(program="torch", routine=peer, dtype=dtype_name, causal=causal, time=timing, tflop_per_s=rate / 1e12)
            row.update(batch=batch, heads=heads, key_heads=key_heads, steps=steps, dim=dim, window=window)
            row["pass"] = pass_name
            rows.append(row)
            print(f"{pass_name:<8} {dtype_name:<5} {word:<24} {peer:<10} {timing['median'] * 1e3:10.4f} ms {rate / 1e12:8.3f} TFLOP/s", flush=True)

    def save():
        report = dict(command=" ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), device=str(device), name=name, version=version)
        report.update(rows=rows, skipped=skipped)
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)

    for dtype in dtypes:
        for word in shapes:
            for peer, call in peers(device).items():
                if wanted and peer not in wanted:
                    continue
                try:
                    measure(peer, call, dtype, word)
                except Exception as error:  # A peer that cannot run is a line of the report, not its end.
                    reason = (str(error) or type(error).__name__).splitlines()[0][:200]
                    skipped.append(dict(routine=peer, dtype=dtype, shape=word, reason=reason))
                    print(f"         {dtype:<5} {word:<24} {peer:<10} skipped: {reason}", flush=True)
                if on_gpu:
                    torch.cuda.empty_cache()
            torch._dynamo.reset()
            # After every shape, so that a limit of time leaves what was measured.
            if args.json:
                save()


main()
