#!/usr/bin/env python3
"""A single step of a Gated DeltaNet layer under PyTorch, beside `riverrun bench decode` on the same machine: products by cuBLAS, the
convolution by tensor operations that `torch.compile` joins, the state by flash-linear-attention's fused recurrence (FLA,
`pip install flash-linear-attention einops`) or, with --rule torch, by tensor operations, all in one CUDA graph of many steps.

Four steps are first held against the same layer in float64. Shapes are words as in riverrun: BxDxHxKxV.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch.nn.functional import rms_norm, silu, softplus

TAPS, STEPS = 4, 128


class Layer:
    def __init__(self, width, heads, key, value, dtype, device, seed=0):
        generator = torch.Generator("cpu").manual_seed(seed)
        draw = lambda *sizes: torch.randn(*sizes, generator=generator)
        channels = heads * (2 * key + value)
        self.sizes = heads, key, value
        self.weights = {
            "qkv": draw(channels, width) * width**-0.5,
            "rates": draw(2 * heads, width) * width**-0.5,
            "gate": draw(heads * value, width) * width**-0.5,
            "out": draw(width, heads * value) * (heads * value) ** -0.5,
            "conv": draw(TAPS, channels) / TAPS,
            "a_log": draw(heads),
            "dt_bias": draw(heads),
            "gamma": 1 + 0.1 * draw(value),
        }
        wide = ("a_log", "dt_bias")
        self.weights = {n: w.to(device, torch.float32 if n in wide and dtype != torch.float64 else dtype) for n, w in self.weights.items()}

    def state(self, batch, dtype, device):
        heads, key, value = self.sizes
        inputs = torch.zeros(batch, TAPS - 1, heads * (2 * key + value), dtype=dtype, device=device)
        matrix = torch.float64 if dtype == torch.float64 else torch.float32
        return inputs, torch.zeros(batch, heads, key, value, dtype=matrix, device=device)

    def before(self, x, inputs):
        """Queries, keys, values, the log decay and beta; the next inputs."""
        w, (heads, key, value) = self.weights, self.sizes
        mixed, rates = x @ w["qkv"].T, x @ w["rates"].T
        seen = torch.cat([inputs, mixed[:, None]], 1)
        c = silu((seen * w["conv"]).sum(1))
        q, k, v = c.split([heads * key, heads * key, heads * value], 1)
        q, k = (y.view(-1, heads, key) for y in (q, k))
        unit = lambda y: y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)
        b, a = rates.chunk(2, 1)
        g = -w["a_log"].exp() * softplus(a.to(w["a_log"].dtype) + w["dt_bias"])
        return unit(q) * key**-0.5, unit(k), v.view(-1, heads, value), g, b.sigmoid(), seen[:, 1:]

    def after(self, x, o):
        w, (heads, _, value) = self.weights, self.sizes
        y = rms_norm(o, (value,), w["gamma"], 1e-6).reshape(len(x), heads * value)
        return (y * silu(x @ w["gate"].T)) @ w["out"].T


def by_torch(q, k, v, g, beta, state):
    state = state * g.exp()[..., None, None].to(state.dtype)
    q, k, v, beta = (y.to(state.dtype) for y in (q, k, v, beta))
    u = beta[..., None] * (v - (state * k[..., None]).sum(-2))
    state = state + k[..., None] * u[..., None, :]
    return (state * q[..., None]).sum(-2), state


def by_fla(q, k, v, g, beta, state):
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as rule

    o, state = rule(q[:, None], k[:, None], v[:, None], g=g[:, None], beta=beta[:, None], scale=1.0, initial_state=state, output_final_state=True)
    return o[:, 0], state


def step_of(layer, rule, compiled):
    join = torch.compile(dynamic=False) if compiled else lambda f: f
    before, after = join(layer.before), join(layer.after)

    def step(x, inputs, matrix):
        q, k, v, g, beta, inputs = before(x, inputs)
        o, matrix = rule(q, k, v, g, beta, matrix)
        return after(x, o.to(x.dtype)), inputs, matrix

    return step


def measure(shape, dtype, rule, seconds):
    batch, width, heads, key, value = shape
    device = "cuda"
    x = torch.randn(4, batch, width, generator=torch.Generator().manual_seed(1))
    reference = Layer(width, heads, key, value, torch.float64, device)
    layer = Layer(width, heads, key, value, dtype, device)
    for name, weight in layer.weights.items():
        reference.weights[name] = weight.double()
    step, exact = step_of(layer, rule, True), step_of(reference, by_torch, False)
    state, truth = layer.state(batch, dtype, device), reference.state(batch, torch.float64, device)
    error = 0.0
    for n in range(4):
        now = x[n].to(device, dtype)
        y, *state = step(now, *state)
        z, *truth = exact(now.double(), *truth)
        error = max(error, float((y.double() - z).abs().max() / z.abs().max()))
    now = x[0].to(device, dtype)
    inputs, matrix = (part.clone() for part in state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a, b = inputs, matrix
        for _ in range(STEPS):
            y, a, b = step(now, a, b)
        inputs.copy_(a)
        matrix.copy_(b)
    times, end = [], time.time() + seconds
    while time.time() < end or len(times) < 7:
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / STEPS)
    times.sort()
    return {"us": 1e6 * statistics.median(times), "error": error, "spread": (times[len(times) * 4 // 5] - times[len(times) // 5]) / 2 / statistics.median(times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="1x1024x16x128x128,8x1024x16x128x128,1x2048x32x128x128")
    parser.add_argument("--rule", default="fla,torch")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for shape in args.shapes.split(","):
        for name in args.rule.split(","):
            row = {"shape": shape, "rule": name}
            try:
                row |= measure([int(n) for n in shape.split("x")], torch.bfloat16, {"fla": by_fla, "torch": by_torch}[name], args.seconds)
                print(f"{shape:>24} {name:>6} {row['us']:9.2f} us ± {100 * row['spread']:.1f}% error {row['error']:.1e}", flush=True)
            except Exception as error:  # A peer that refuses is a result.
                row["refused"] = f"{type(error).__name__}: {error}"[:300]
                print(f"{shape:>24} {name:>6} refused: {row['refused']}", flush=True)
            rows.append(row)
    if args.json:
        facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "dtype": "bf16", "rows": rows}
        with open(args.json, "w") as file:
            json.dump(facts, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
