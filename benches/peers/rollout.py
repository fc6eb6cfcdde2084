#!/usr/bin/env python3
"""The rollout of an ensemble in numpy, and in PyTorch on a GPU where there is one: the formulas of `riverrun bench rollout`.

E members, Y steps, H hidden units, S = H classes, 64 features; float32. PyTorch runs all members as batched products: eager, and
as one CUDA graph.

    python3 benches/peers/rollout.py [--members 5] [--steps 50] [--hidden 256] [--json FILE]
"""

import argparse
import json
import time

import numpy as np

FEATURES = 64


def numpy_rollout(w, u, b, heads, h, f, loss, steps):
    """All members at once, as numpy does it best."""
    hidden = h.shape[1]
    base = (w[:, :, 1:] @ f[1:]) + b
    first = w[:, :, 0]
    signal = np.full((len(h), 1), f[0], np.float32)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    trajectory = [np.full(len(h), loss, np.float32)]
    for _ in range(steps):
        x = base + first * signal
        zr = sigmoid(x[:, : 2 * hidden] + (u[:, : 2 * hidden] @ h[:, :, None])[:, :, 0])
        z, r = zr[:, :hidden], zr[:, hidden:]
        c = np.tanh(x[:, 2 * hidden :] + (u[:, 2 * hidden :] @ (r * h)[:, :, None])[:, :, 0])
        h = (1 - z) * h + z * c
        e = np.exp(h - h.max(1, keepdims=True))
        p = e / e.sum(1, keepdims=True)
        y = np.concatenate([h, p], 1) @ heads[0]
        signal = np.maximum(np.exp(np.clip(y, -10, 10)), 1e-6)[:, None]
        trajectory.append(signal[:, 0])
    return np.stack(trajectory, 1)


def torch_rollout(w, u, b, heads, h, f, loss, steps):
    import torch

    hidden = h.shape[1]
    base = w[:, :, 1:] @ f[1:] + b
    first = w[:, :, 0]
    signal = f[:1].expand(len(h), 1)
    trajectory = [loss.expand(len(h))]
    for _ in range(steps):
        x = base + first * signal
        zr = torch.sigmoid(x[:, : 2 * hidden] + torch.bmm(u[:, : 2 * hidden], h[:, :, None])[:, :, 0])
        z, r = zr[:, :hidden], zr[:, hidden:]
        c = torch.tanh(x[:, 2 * hidden :] + torch.bmm(u[:, 2 * hidden :], (r * h)[:, :, None])[:, :, 0])
        h = (1 - z) * h + z * c
        y = torch.cat([h, torch.softmax(h, 1)], 1) @ heads[0]
        signal = torch.exp(y.clamp(-10, 10)).clamp_min(1e-6)[:, None]
        trajectory.append(signal[:, 0])
    return torch.stack(trajectory, 1)


def timed(call, wait=lambda: None, seconds=1.0):
    for _ in range(3):
        call()
    wait()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 7 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    times.sort()
    return dict(median=times[len(times) // 2], low=times[len(times) // 5], high=times[len(times) * 4 // 5], samples=len(times))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--members", type=int, default=5)
    options.add_argument("--steps", type=int, nargs="+", default=[10, 25, 50, 75, 100])
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--json")
    args = options.parse_args()
    rng, e, h = np.random.default_rng(0), args.members, args.hidden
    uniform = lambda bound, *shape: rng.uniform(-bound, bound, shape).astype(np.float32)
    f = uniform(1.0, FEATURES)
    f[0] = 2.0
    arrays = [uniform(FEATURES**-0.5, e, 3 * h, FEATURES), uniform(h**-0.5, e, 3 * h, h), uniform(0.5, e, 3 * h), uniform(h**-0.5, 11, 2 * h), uniform(1.0, e, h), f]
    rows = []
    for steps in args.steps:
        found = numpy_rollout(*arrays, np.float32(2.0), steps)
        rows.append(dict(program="numpy", members=e, steps=steps, hidden=h, time=timed(lambda: numpy_rollout(*arrays, np.float32(2.0), steps))))
        try:
            import torch
        except ImportError:
            continue
        if not torch.cuda.is_available():
            continue
        tensors = [torch.from_numpy(a).cuda() for a in arrays] + [torch.full((1,), 2.0, device="cuda")]
        with torch.no_grad():
            call = lambda: torch_rollout(*tensors, steps)
            assert np.allclose(call().cpu().numpy(), found, rtol=1e-3), "PyTorch and numpy differ"
            rows.append(dict(program="torch", members=e, steps=steps, hidden=h, time=timed(call, torch.cuda.synchronize)))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            rows.append(dict(program="torch-graph", members=e, steps=steps, hidden=h, time=timed(graph.replay, torch.cuda.synchronize)))
    for row in rows:
        print(f"{row['program']:<12} {row['members']:>4} x {row['steps']:<4} H {row['hidden']:<5} {row['time']['median'] * 1e3:9.3f} ms")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(dict(rows=rows), file, indent=1)


if __name__ == "__main__":
    main()
