#!/usr/bin/env python3
"""Measures recurrent layers of transformers in PyTorch without kernels of their own, as `riverrun bench layer` measures its own.

    benches/peers/layers.py [--shapes 1x1024x1024x8] [--device cpu] [--threads 2] [--seconds 5] [--json FILE]

Shapes are batch x steps x features x heads, the channels of a head features / heads. The layer is the Gated DeltaNet of Qwen3.5
(transformers 5.24 or later), whose fallback on the CPU is a chunked form by tensor operations.
"""
import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

parser = argparse.ArgumentParser()
parser.add_argument("--shapes", default="1x1024x1024x8")
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--seconds", type=float, default=5.0)
parser.add_argument("--json")
args = parser.parse_args()
torch.set_num_threads(args.threads)


def measure(run):
    for _ in range(2):
        run()
    times, end = [], time.perf_counter() + args.seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        run()
        if args.device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    times.sort()
    return statistics.median(times), (times[int(0.8 * len(times))] - times[int(0.2 * len(times))]) / 2


rows = []
for shape in args.shapes.split(","):
    batch, steps, features, heads = map(int, shape.split("x"))
    channels = features // heads
    config = Qwen3_5TextConfig(
        hidden_size=features, num_hidden_layers=1, layer_types=["linear_attention"], linear_num_key_heads=heads,
        linear_num_value_heads=heads, linear_key_head_dim=channels, linear_value_head_dim=channels)
    torch.manual_seed(0)
    layer = Qwen3_5GatedDeltaNet(config, 0).to(args.device)
    x = torch.randn(batch, steps, features, device=args.device, requires_grad=True)

    def forward():
        with torch.no_grad():
            layer(x)

    def both():
        x.grad = None
        layer.zero_grad()
        layer(x).sum().backward()

    for name, run in [("forward", forward), ("forward + backward", both)]:
        median, spread = measure(run)
        print(f"gated-delta-net {shape} {name}: {median:.2f} ms +- {spread:.2f}")
        rows.append(dict(layer="gated-delta-net", shape=shape, **{"pass": name}, time_ms=median, spread_ms=spread))
if args.json:
    versions = dict(torch=torch.__version__, transformers=transformers.__version__, threads=args.threads)
    with open(args.json, "w") as file:
        json.dump(dict(versions=versions, rows=rows), file, indent=1)
