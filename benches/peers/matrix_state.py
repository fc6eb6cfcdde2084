#!/usr/bin/env python3
"""Matrix-state recurrences of flash-linear-attention (FLA, `pip install flash-linear-attention einops`) beside
`riverrun bench matrix-state` on the same machine.

The forward pass is timed without gradients, the backward pass alone, by calls in a row. Every form is first held against the
recurrence in float64 on a shorter problem; a form that is wrong or refuses to run is printed as such. Shapes are words as in
riverrun: form:BxTxH/JxKxV, with H heads of values and of the state and J of queries and keys.
"""

import argparse
import json
import math
import re
import statistics
import sys
import time

import torch
from torch.nn.functional import normalize

SHAPES = "gdn:1x8192x32/16x128x128,gdn:1x32768x8/2x128x128,gdn:4x8192x32/16x128x128,kda:2x8192x64/64x128x128,mamba2:4x8192x64/64x128x64,rwkv7:4x4096x32/32x64x64"
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Decays: none, one a head, one a row of the state. Erase: what the key reads, what one vector reads along another, nothing.
FORMS = {
    "delta": (None, "key"),
    "gdn": ("head", "key"),
    "kda": ("row", "key"),
    "mamba2": ("head", None),
    "gla": ("row", None),
    "rwkv7": ("row", "separate"),
}
# No decay of RWKV-7 is stronger in a step: e^(-1/2), by which its layer bounds the logarithm.
RWKV7_BOUND = -math.exp(-0.5)


def peer(form):
    """The function of FLA, with riverrun's arguments."""
    if form == "gdn":
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule as rule
    elif form == "kda":
        from fla.ops.kda import chunk_kda as rule
    elif form == "delta":
        from fla.ops.delta_rule import chunk_delta_rule as rule
    elif form == "rwkv7":
        from fla.ops.rwkv7 import chunk_rwkv7

        return lambda q, k, v, g, _, a, b: chunk_rwkv7(q, g, k, v, a, b, scale=1.0, lower_bound=RWKV7_BOUND)[0]
    elif form == "mamba2":
        from fla.ops.simple_gla import chunk_simple_gla as rule
    else:
        from fla.ops.gla import chunk_gla as rule

    def call(q, k, v, g, beta, *_):
        given = {"g": g, "beta": beta}
        given = {name: x for name, x in given.items() if x is not None}
        if form not in ("gdn", "kda"):
            # These have one head of keys for each of values.
            group = v.shape[2] // q.shape[2]
            q, k = (x.repeat_interleave(group, 2) if group > 1 else x for x in (q, k))
        return rule(q, k, v, scale=1.0, **given)[0]

    return call


def data(form, shape, dtype, device, seed=0):
    batch, steps, heads, key_heads, key, value = shape
    gate, erase = FORMS[form]
    generator = torch.Generator(device).manual_seed(seed)
    draw = lambda *sizes: torch.randn(batch, steps, *sizes, generator=generator, device=device)
    q, k = (normalize(draw(key_heads, key), dim=-1) for _ in range(2))
    g = None
    if gate:
        g = -torch.nn.functional.softplus(draw(heads) if gate == "head" else draw(heads, key)) / 16
    beta = draw(heads).sigmoid() if erase == "key" else None
    a = b = None
    if erase == "separate":
        g = RWKV7_BOUND * draw(heads, key).sigmoid()
        a = -normalize(draw(heads, key), dim=-1)
        b = -a * draw(heads, key).sigmoid()
    # The logarithms of the decays stay in f32, as FLA's layers have them.
    half = lambda x: None if x is None else x.to(dtype)
    typed = [half(q), half(k), half(draw(heads, value)), g, half(beta), half(a), half(b)]
    return [None if x is None else x.detach().requires_grad_() for x in typed]


def recurrence(q, k, v, g, beta, a, b):
    """The definition, in float64."""
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, 2) for x in (q, k))
    state = torch.zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3], dtype=v.dtype, device=v.device)
    outputs = []
    for t in range(v.shape[1]):
        before = state
        if g is not None:
            decay = g[:, t].exp()
            state = state * (decay[..., None, None] if decay.dim() == 2 else decay[..., None])
        u = v[:, t]
        if beta is not None:
            u = beta[:, t, :, None] * (u - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        if a is not None:
            state = state + b[:, t, :, :, None] * torch.einsum("bhkv,bhk->bhv", before, a[:, t])[:, :, None]
        state = state + k[:, t, :, :, None] * u[:, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1)


def check(form, call, shape, dtype, device, backward):
    """The largest error of a pass, relative to the largest number of a tensor, on a shorter problem."""
    _, steps, heads, key_heads, key, value = shape
    inputs = data(form, (1, min(steps, 200), heads, key_heads, key, value), dtype, device, 1)
    exact = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
    truth, found = recurrence(*exact), call(*inputs)
    if not backward:
        return accepted([found], [truth], dtype)
    seed = torch.randn_like(found)
    present = lambda all: [x for x in all if x is not None]
    found = [found, *torch.autograd.grad(found, present(inputs), seed)]
    truth = [truth, *torch.autograd.grad(truth, present(exact), seed.double())]
    return accepted(found, truth, dtype)


def accepted(found, truth, dtype):
    error = max(((x.double() - y).abs().max() / y.abs().max()).item() for x, y in zip(found, truth))
    if not error <= (2e-2 if dtype != torch.float32 else 1e-3):
        raise RuntimeError(f"wrong by {error:.1e}")
    return error


def timed(call, budget):
    def row(calls):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / calls

    for _ in range(3):
        row(1)
    calls = max(1, min(64, round(1e-2 / row(1))))
    begin, all_times = time.perf_counter(), []
    while len(all_times) < 7 or time.perf_counter() - begin < budget:
        all_times.append(row(calls))
    all_times.sort()
    at = lambda part: all_times[round((len(all_times) - 1) * part)]
    return {"median": statistics.median(all_times), "low": at(0.2), "high": at(0.8), "samples": len(all_times)}


def parse(word):
    found = re.fullmatch(r"(\w+):(\d+)x(\d+)x(\d+)/(\d+)x(\d+)x(\d+)", word)
    if not found or found[1] not in FORMS:
        sys.exit(f"`{word}` is not a shape")
    return found[1], tuple(int(n) for n in found.groups()[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default=SHAPES, help="words as above, separated by commas")
    parser.add_argument("--dtypes", default="bf16", help="f32, f16, bf16, separated by commas")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each timing")
    parser.add_argument("--json", help="write the results here too")
    args = parser.parse_args()
    device = torch.device(args.device)
    import fla
    import triton

    version = f"FLA {fla.__version__}, Triton {triton.__version__}, PyTorch {torch.__version__}"
    name = torch.cuda.get_device_name(device)
    print(f"{name}; {version}")
    rows, skipped = [], []
    for dtype in args.dtypes.split(","):
        for word in args.shapes.split(","):
            form, shape = parse(word)
            inputs = data(form, shape, DTYPES[dtype], device)
            present = [x for x in inputs if x is not None]
            row = dict(program="fla", dtype=dtype, shape=word)
            for pass_name in ("forward", "backward"):
                try:
                    call = peer(form)
                    error = check(form, call, shape, DTYPES[dtype], device, pass_name == "backward")
                    if pass_name == "forward":

                        def once():
                            with torch.no_grad():
                                call(*inputs)

                    else:
                        o = call(*inputs)
                        seed = torch.randn_like(o)
                        once = lambda: torch.autograd.grad(o, present, seed, retain_graph=True)
                    time_of = timed(once, args.budget)
                except Exception as reason:
                    first = str(reason).strip().splitlines()[0][:160] if str(reason).strip() else type(reason).__name__
                    print(f"{dtype:5} {word:32} {pass_name:8} {first}", flush=True)
                    skipped.append(dict(dtype=dtype, shape=word, pass_name=pass_name, reason=first))
                    continue
                print(f"{dtype:5} {word:32} {pass_name:8} {1e3 * time_of['median']:8.3f} ms  error {error:.1e}", flush=True)
                row[pass_name] = dict(time=time_of, error=error)
            if len(row) > 3:
                rows.append(row)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(dict(device=name, version=version, rows=rows, skipped=skipped), file, indent=1)


if __name__ == "__main__":
    main()
