#!/usr/bin/env python3
"""Calls of riverrun's Python package on a GPU: what a call costs the host, the rate of a scan beside a copy, and layers and the gated
delta rule beside cuDNN and flash-linear-attention (FLA, `pip install flash-linear-attention einops`) where it is installed.

Times are medians, in brackets the 20th and 80th percentile, of calls in a row; of the host, of calls that the GPU keeps up with.
"""

import json
import sys
import time

import torch
from torch.nn.functional import normalize, softplus

import riverrun
import riverrun.torch as rt
from riverrun import _riverrun as native
from riverrun.torch import _tensors

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
rows = []


def spread(times):
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[len(ordered) // 5], ordered[-1 - len(ordered) // 5]


def report(name, times, unit, note=""):
    median, low, high = spread(times)
    rows.append({"name": name, "median": median, "low": low, "high": high, "unit": unit, "note": note})
    print(f"{name}: {median:.4g} {unit} ({low:.4g} to {high:.4g}){' ' + note if note else ''}", flush=True)
    return median


def gpu(call, calls=10, times=12):
    """Milliseconds of a call in a row of them."""
    for _ in range(4):
        call()
    found = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / calls)
    return found


def host(call, calls=200, times=9):
    """Microseconds of the host until a call returns."""
    for _ in range(20):
        call()
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return found


def draw(*shape, **options):
    return torch.rand(shape, device=DEVICE, dtype=DTYPE, **options)


def grad(call, leaves, d):
    return lambda: torch.autograd.grad(call(), leaves, d)


def calls():
    x = torch.rand(2, 64, 64, device=DEVICE)
    h, place, views = torch.empty_like(x), _tensors.place(x), [_tensors.view(x)] * 2
    arguments = (place, "float32", "raw", (2, 64, 64), False, views, None, None, _tensors.array(h))
    report("a scan of one kernel, the native call", host(lambda: native.scan(*arguments)), "us of the host")
    report("a scan of one kernel, rt.linear_scan", host(lambda: rt.linear_scan(x, x)), "us of the host")
    report("PyTorch's x + x", host(lambda: x + x), "us of the host")


def scans():
    source = torch.empty(1 << 29, device=DEVICE, dtype=DTYPE)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / spread(gpu(lambda: target.copy_(source)))[0] / 1e6
    print(f"copy: {copy:.0f} GB/s")
    del source, target
    a, b = draw(4, 4096, 5120, requires_grad=True), draw(4, 4096, 5120, requires_grad=True)
    d = draw(4, 4096, 5120)
    with torch.no_grad():
        forward = gpu(lambda: rt.linear_scan(a, b))
    part = 3 * a.nbytes / spread(forward)[0] / 1e6 / copy
    report("linear_scan 4x4096x5120 forward", forward, "ms", f"{part:.1%} of the copy")
    both = gpu(grad(lambda: rt.linear_scan(a, b), (a, b), d))
    backward = spread(both)[0] - spread(forward)[0]
    part = 5 * a.nbytes / backward / 1e6 / copy
    report("linear_scan 4x4096x5120 both ways", both, "ms", f"backward {part:.1%} of the copy")
    a, b, d = draw(64, 512, 256, requires_grad=True), draw(64, 512, 256, requires_grad=True), draw(64, 512, 256)
    both = grad(lambda: rt.linear_scan(a, b), (a, b), d)
    report("linear_scan 64x512x256 both ways", gpu(both), "ms")
    report("linear_scan 64x512x256 both ways", host(both), "us of the host")
    try:
        from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn
    except ImportError as error:
        print(f"FLA: {error}")
        return
    g = (-draw(64, 512, 256)).requires_grad_()
    for name, rule in (("fused_recurrent_hgrn", fused_recurrent_hgrn), ("chunk_hgrn", chunk_hgrn)):
        both = grad(lambda rule=rule: rule(b, g)[0], (b, g), d)
        report(f"FLA {name} 64x512x256 both ways", gpu(both), "ms")
        report(f"FLA {name} 64x512x256 both ways", host(both), "us of the host")


def layers():
    x = torch.randn(64, 1024, 512, device=DEVICE, dtype=DTYPE, requires_grad=True)
    d = torch.randn_like(x)
    for name in ("GRU", "LSTM"):
        ours = getattr(rt, name)(512, 512, batch_first=True, device=DEVICE, dtype=DTYPE)
        theirs = getattr(torch.nn, name)(512, 512, batch_first=True, device=DEVICE, dtype=DTYPE)
        theirs.load_state_dict(ours.state_dict())
        for whose, layer in (("riverrun", ours), ("cuDNN", theirs)):
            run = grad(lambda layer=layer: layer(x)[0], (x, *layer.parameters()), d)
            times = gpu(run, calls=3)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            peak = (torch.cuda.max_memory_allocated() - before) / 1e6
            report(f"{whose} {name} 64x1024x512 both ways", times, "ms", f"peak {peak:.0f} MB")


def delta_rules():
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule as peer
    except ImportError:
        peer = None
    for batch, steps, heads, key_heads in ((1, 8192, 32, 16), (4, 8192, 32, 16), (1, 32768, 8, 2)):
        name = f"gated delta rule {batch}x{steps}x{heads}/{key_heads}x128x128"
        vectors = [torch.randn(batch, steps, key_heads, 128, device=DEVICE) for _ in range(2)]
        q, k = (normalize(x, dim=-1).to(DTYPE).requires_grad_() for x in vectors)
        v = torch.randn(batch, steps, heads, 128, device=DEVICE).to(DTYPE).requires_grad_()
        g = (-softplus(torch.randn(batch, steps, heads, device=DEVICE)) / 16).to(DTYPE).requires_grad_()
        beta = torch.randn(batch, steps, heads, device=DEVICE).sigmoid().to(DTYPE).requires_grad_()
        d = torch.randn_like(v)
        ours = lambda: rt.chunk_gated_delta_rule(q, k, v, g, beta, scale=1.0)[0]
        with torch.no_grad():
            report(f"riverrun {name} forward", gpu(ours), "ms")
        report(f"riverrun {name} both ways", gpu(grad(ours, (q, k, v, g, beta), d)), "ms")
        if peer is None:
            continue
        theirs = lambda: peer(q, k, v, g.float(), beta, scale=1.0)[0]
        with torch.no_grad():
            apart = (theirs().float() - ours().float()).abs().max() / ours().float().abs().max()
            report(f"FLA {name} forward", gpu(theirs), "ms", f"apart by {apart.item():.1e} of the largest")
        try:
            report(f"FLA {name} both ways", gpu(grad(theirs, (q, k, v, beta), d)), "ms")
        except Exception as error:
            print(f"FLA {name} both ways: {str(error)[:120]}")


if __name__ == "__main__":
    names = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "riverrun": riverrun.__version__}
    print(names)
    for part in (calls, scans, layers, delta_rules):
        part()
    if len(sys.argv) > 2 and sys.argv[1] == "--json":
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump({**names, "rows": rows}, file, indent=1)
