#!/usr/bin/env python3
"""GRU and LSTM layers in PyTorch, which is cuDNN on NVIDIA GPUs, beside `riverrun bench cell` on the same machine.

The layer is as wide as its input, runs over B sequences of T steps, and is timed forward without gradients and forward and
backward with those of the input and of every weight; several calls in a row, so that the time from one to the next counts and
the way to the first does not. cuDNN's persistent kernels, which it has for some LSTMs in f16, are its own choice.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch


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
    calls = max(1, min(16, round(5e-3 / row(1))))
    begin, all_times = time.perf_counter(), []
    while len(all_times) < 5 or time.perf_counter() - begin < budget:
        all_times.append(row(calls))
    all_times.sort()
    at = lambda part: all_times[round((len(all_times) - 1) * part)]
    return {"median": statistics.median(all_times), "low": at(0.2), "high": at(0.8), "samples": len(all_times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cells", default="gru,lstm")
    parser.add_argument("--dtypes", default="bf16,f16")
    parser.add_argument("--shapes", default="16x1024x256", help="BxTxH, separated by commas")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds for each timing")
    parser.add_argument("--json")
    args = parser.parse_args()
    device = torch.device(args.device)
    names = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    rows = []
    for cell in args.cells.split(","):
        for dtype in args.dtypes.split(","):
            for shape in args.shapes.split(","):
                batch, steps, hidden = map(int, shape.split("x"))
                layer = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM, "rnn": torch.nn.RNN}[cell]
                layer = layer(hidden, hidden, batch_first=True).to(device, names[dtype])
                x = torch.randn(batch, steps, hidden, device=device, dtype=names[dtype])
                grad = torch.randn_like(x)

                def forward():
                    with torch.no_grad():
                        layer(x)

                def both():
                    inputs = x.detach().requires_grad_()
                    layer(inputs)[0].backward(grad)

                for name, call in [("forward", forward), ("forward + backward", both)]:
                    spread = timed(call, device, args.budget)
                    us = spread["median"] * 1e6 / steps
                    rows.append(
                        dict(program="torch", cell=cell, dtype=dtype, batch=batch, steps=steps, hidden=hidden, time=spread)
                        | {"pass": name, "us_per_step": us}
                    )
                    print(f"{cell:<5} {dtype:<5} {name:<18} {shape:<14} {spread['median'] * 1e3:9.3f} ms {us:8.2f} us/step", flush=True)
    if args.json:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        about = {"command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), "name": name, "version": f"torch {torch.__version__}", "rows": rows}
        json.dump(about, open(args.json, "w"), indent=1)


main()
