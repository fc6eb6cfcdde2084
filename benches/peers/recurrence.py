#!/usr/bin/env python3
"""The linear recurrence in PyTorch, beside `riverrun bench recurrence` on the same machine.

Peers, each held against float64 before it is timed:
  log-space   what minGRU implementations in PyTorch do: exp(A + logcumsumexp(log b - A)), A = cumsum(log a), in float32
  compiled    the same through torch.compile
  loop        one step after another, for shapes of up to 512 steps
  triton      tl.associative_scan over blocks of time with the state carried between them, forward and backward; where
              Triton is installed and the device is CUDA

Inputs are those of the gate: `raw` takes a in (0, 1) and b, `min-gru` takes its two pre-activations side by side (with
candidate g, which log space needs). GB/s count each tensor read or written once, as `riverrun bench recurrence` does; the
part of the copy is of a copy measured here. One line of the table is one timing; --json writes what table.py merges.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Tensors of B·T·D elements that are read or written at least once.
STREAMS = {("raw", "forward"): 3, ("raw", "backward"): 5, ("min-gru", "forward"): 3, ("min-gru", "backward"): 6}


def log_scan(log_a, log_b):
    total = log_a.cumsum(1)
    return torch.exp(total + torch.logcumsumexp(log_b - total, 1))


def log_g(x):
    return torch.where(x >= 0, torch.log(F.relu(x) + 0.5), -F.softplus(-x))


def log_space(gate, inputs):
    dtype = inputs[0].dtype
    if gate == "raw":
        a, b = (x.float() for x in inputs)
        return log_scan(a.log(), b.log()).to(dtype)
    k_z, k_h = inputs[0].float().chunk(2, -1)
    return log_scan(-F.softplus(k_z), -F.softplus(-k_z) + log_g(k_h)).to(dtype)


def coefficients(gate, inputs):
    if gate == "raw":
        return inputs
    k_z, k_h = inputs[0].chunk(2, -1)
    z = torch.sigmoid(k_z)
    return 1 - z, z * torch.where(k_h >= 0, k_h + 0.5, torch.sigmoid(k_h))


def loop(gate, inputs):
    a, b = coefficients(gate, inputs)
    h, states = torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


if triton is not None:

    @triton.jit
    def then(a1, b1, a2, b2):
        return a1 * a2, a2 * b1 + b2

    @triton.jit
    def scan_forward(A, B, H, T, D, BT: tl.constexpr, BD: tl.constexpr):
        d = tl.program_id(0) * BD + tl.arange(0, BD)
        base = tl.program_id(1).to(tl.int64) * T * D
        rows = tl.arange(0, BT)
        carry = tl.zeros([BD], tl.float32)
        for start in range(0, T, BT):
            t = start + rows
            at = base + t[:, None].to(tl.int64) * D + d[None, :]
            inside = (t[:, None] < T) & (d[None, :] < D)
            a = tl.load(A + at, inside, 1.0).to(tl.float32)
            b = tl.load(B + at, inside, 0.0).to(tl.float32)
            a, b = tl.associative_scan((a, b), 0, then)
            h = a * carry[None, :] + b
            tl.store(H + at, h.to(H.dtype.element_ty), inside)
            carry = tl.sum(tl.where(rows[:, None] == BT - 1, h, 0.0), 0)

    @triton.jit
    def scan_backward(A, H, G, DA, DB, T, D, BT: tl.constexpr, BD: tl.constexpr):
        d = tl.program_id(0) * BD + tl.arange(0, BD)
        base = tl.program_id(1).to(tl.int64) * T * D
        rows = tl.arange(0, BT)
        carry = tl.zeros([BD], tl.float32)
        for start in range(0, T, BT):
            # From the last step to the first; D_t = g_t + a_{t+1} D_{t+1}.
            t = T - 1 - start - rows
            at = base + t[:, None].to(tl.int64) * D + d[None, :]
            inside = (t[:, None] >= 0) & (d[None, :] < D)
            a = tl.load(A + at + D, inside & (t[:, None] < T - 1), 0.0).to(tl.float32)
            a = tl.where(t[:, None] >= 0, a, 1.0)
            g = tl.load(G + at, inside, 0.0).to(tl.float32)
            before = tl.load(H + at - D, inside & (t[:, None] > 0), 0.0).to(tl.float32)
            a, g = tl.associative_scan((a, g), 0, then)
            total = a * carry[None, :] + g
            tl.store(DB + at, total.to(DB.dtype.element_ty), inside)
            tl.store(DA + at, (total * before).to(DA.dtype.element_ty), inside)
            carry = tl.sum(tl.where(rows[:, None] == BT - 1, total, 0.0), 0)

    class TritonScan(torch.autograd.Function):
        BLOCKS = dict(BT=32, BD=32, num_warps=4)

        @staticmethod
        def forward(ctx, a, b):
            a, b = a.contiguous(), b.contiguous()
            h = torch.empty_like(a)
            batch, steps, dim = a.shape
            grid = (triton.cdiv(dim, TritonScan.BLOCKS["BD"]), batch)
            scan_forward[grid](a, b, h, steps, dim, **TritonScan.BLOCKS)
            ctx.save_for_backward(a, h)
            return h

        @staticmethod
        def backward(ctx, g):
            a, h = ctx.saved_tensors
            d_a, d_b = torch.empty_like(a), torch.empty_like(a)
            batch, steps, dim = a.shape
            grid = (triton.cdiv(dim, TritonScan.BLOCKS["BD"]), batch)
            scan_backward[grid](a, h, g.contiguous(), d_a, d_b, steps, dim, **TritonScan.BLOCKS)
            return d_a, d_b


def peers(device):
    found = {"log-space": log_space, "compiled": torch.compile(log_space, dynamic=False), "loop": loop}
    if triton is not None and device.type == "cuda":
        found["triton"] = lambda gate, inputs: TritonScan.apply(*coefficients(gate, inputs))
    return found


def data(gate, shape, dtype, device, seed=0):
    generator = torch.Generator(device).manual_seed(seed)
    draw = lambda *size: torch.rand(size, generator=generator, device=device)
    batch, steps, dim = shape
    if gate == "raw":
        inputs = [0.02 + 0.97 * draw(*shape), 0.02 + 0.97 * draw(*shape)]
    else:
        inputs = [4 * draw(batch, steps, 2 * dim) - 2]
    return [x.to(dtype).requires_grad_() for x in inputs]


def check(run, gate, dtype, device):
    """Relative error, to the largest number of each tensor, of the states and gradients of a small problem."""
    inputs = data(gate, (2, 96, 40), dtype, device, 1)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    h, truth = run(gate, inputs), loop(gate, exact)
    g = torch.rand_like(h)
    found = [h, *torch.autograd.grad(h, inputs, g)]
    truth = [truth, *torch.autograd.grad(truth, exact, g.double())]
    error = max(((x.double() - y).abs().max() / y.abs().max()).item() for x, y in zip(found, truth))
    # Log space carries sums of logarithms, of which an f32 keeps fewer and fewer digits: over long sequences it is refused.
    limit = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    if not error <= limit:
        raise RuntimeError(f"wrong by {error:.1e}")


def seconds(device, budget, once):
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _ in range(3):
        once()
    wait()
    times, end = [], time.perf_counter() + budget
    while len(times) < 7 or time.perf_counter() < end:
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            once()
            last.record()
            wait()
            times.append(first.elapsed_time(last) / 1e3)
        else:
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
    times.sort()
    at = lambda part: times[round((len(times) - 1) * part)]
    return dict(median=statistics.median(times), low=at(0.2), high=at(0.8), samples=len(times))


def copy_rate(device):
    n = 1 << (28 if device.type == "cuda" else 26)
    x = torch.ones(n, device=device)
    y = torch.empty_like(x)
    return 8 * n / seconds(device, 0.5, lambda: y.copy_(x))["median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", default="4x1024x5120,64x512x256,1x65536x1024")
    parser.add_argument("--gates", default="raw,min-gru")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--peers", help="only these, separated by commas")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each timing")
    parser.add_argument("--json", help="write the results here too")
    args = parser.parse_args()
    device = torch.device(args.device)
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    copy = copy_rate(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}; PyTorch {torch.__version__}; copy {copy / 1e9:.0f} GB/s")
    wanted = args.peers.split(",") if args.peers else None
    rows, skipped = [], []

    def measure(peer, run, gate, dtype_name, shape):
        dtype = dtypes[dtype_name]
        check(run, gate, dtype, device)
        inputs = data(gate, shape, dtype, device)
        h = run(gate, inputs)
        g = torch.rand_like(h)
        passes = {
            "forward": lambda: run(gate, inputs),
            "backward": lambda: torch.autograd.grad(h, inputs, g, retain_graph=True),
        }
        for name, once in passes.items():
            timing = seconds(device, args.budget, once)
            count = STREAMS[gate, name] * shape[0] * shape[1] * shape[2]
            rate = count * inputs[0].element_size() / timing["median"]
            row = dict(program="torch", routine=peer, gate=gate, dtype=dtype_name, time=timing)
            row.update(zip(("batch", "steps", "dim"), shape))
            row.update({"pass": name, "gb_per_s": rate / 1e9, "of_copy": rate / copy})
            rows.append(row)
            size = "x".join(map(str, shape))
            line = f"{gate:<8} {name:<8} {dtype_name:<4} {size:<16} {peer:<10}"
            print(f"{line} {timing['median'] * 1e3:10.3f} ms {rate / 1e9:7.0f} GB/s {100 * rate / copy:6.1f} % of copy")
            sys.stdout.flush()

    for gate in args.gates.split(","):
        for dtype in args.dtypes.split(","):
            for shape in args.shapes.split(","):
                sizes = tuple(int(n) for n in shape.split("x"))
                for peer, run in peers(device).items():
                    if (wanted and peer not in wanted) or (peer == "loop" and sizes[1] > 512):
                        continue
                    try:
                        measure(peer, run, gate, dtype, sizes)
                    except Exception as error:  # A peer that cannot run is a line of the report, not its end.
                        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
                        skipped.append(dict(routine=peer, gate=gate, dtype=dtype, shape=shape, reason=reason))
                        print(f"{gate:<8} {dtype:<4} {shape:<16} {peer:<10} skipped: {reason}")
                    torch.cuda.empty_cache()
                torch._dynamo.reset()
    if args.json:
        report = dict(command=" ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), device=str(device), name=name, version=f"PyTorch {torch.__version__}")
        report.update(copy_gb_per_s=copy / 1e9, rows=rows, skipped=skipped)
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)


main()
