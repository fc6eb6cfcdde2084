#!/usr/bin/env python3
"""Training steps of language models in PyTorch, beside `riverrun bench train` on the same machine.

The model is the one that riverrun trains: an embedding; blocks of RMSNorm, minGRU, residual, RMSNorm, an MLP four times as wide
with tanh-GELU, residual; RMSNorm and a projection to the vocabulary. The recurrence is in log space, as its paper writes it
(Feng et al. 2024, appendix B). Autocast to 16 bits, fused AdamW, gradients clipped to a norm of 1. Routines:

  eager         as written
  compile       through torch.compile
  fused         the recurrence as one Triton kernel each way (fused_scan.py), the rest through torch.compile
  nn.GRU        PyTorch's GRU in minGRU's place, the rest through torch.compile; nn.LSTM likewise
  riverrun      riverrun.torch's minGRU in its place, the rest through torch.compile; riverrun.rows its RMSNorm and cross-entropy too
  griffin-...   Griffin (griffin.py): griffin-eager, griffin-compile, and griffin-fused, its RG-LRU a Triton kernel each way
  gpt2-...      GPT-2 (gpt2.py): gpt2-eager, gpt2-compile
  fla.GDN       FLA's Gated DeltaNet (gated_delta.py) in minGRU's place, the rest through torch.compile; with --wrong-gradients,
                where FLA refuses to run
  ...-graph     one of these with the whole step (forward, backward, clipping, optimizer) recorded as one CUDA graph

A step is timed from the batch on the device to the end of the device's work. A model whose loss does not start near that of a
random guess, or does not fall, is not timed; a fused recurrence is held against float64 before.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUTINES = {
    "cuda": "compile,compile-graph,fused,fused-graph,nn.GRU,nn.GRU-graph,nn.LSTM,nn.LSTM-graph",
    "cpu": "eager,compile,nn.GRU",
}
SHAPES = {
    "cuda": "256x4x64x256x65,512x6x64x1024x65,768x12x16x1024x50257",
    "cpu": "128x3x16x256x65",
}


class MinGru(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.candidate_and_gate = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x):
        v, k = self.candidate_and_gate(x).float().chunk(2, dim=-1)
        log_candidate = torch.where(v >= 0, (v.relu() + 0.5).log(), -F.softplus(-v))
        log_kept = -F.softplus(k).cumsum(dim=1)
        log_added = log_candidate - F.softplus(-k)
        return (log_kept + (log_added - log_kept).logcumsumexp(dim=1)).exp().to(x.dtype)


class FusedMinGru(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.candidate_and_gate = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x):
        return torch.ops.riverrun_peers.min_gru(self.candidate_and_gate(x))


def riverrun_layer(width):
    from riverrun.torch import MinGRU

    return Sequences(MinGRU(width, width, bias=False, candidate="g"))


def with_riverrun_rows(model):
    """The model with riverrun's RMSNorm and cross-entropy."""
    from riverrun.torch import cross_entropy, rms_norm

    class Norm(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return rms_norm(x, self.weight.to(x.dtype))

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.RMSNorm):
                setattr(module, name, Norm(child.weight))
    model.loss = cross_entropy
    return model


class Sequences(nn.Module):
    """A layer without the last state that it gives beside its sequence."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def fla_layer(width):
    from gated_delta import GatedDeltaNet

    return GatedDeltaNet(width)


RECURRENT = {
    "eager": MinGru,
    "compile": MinGru,
    "fused": FusedMinGru,
    "riverrun": riverrun_layer,
    "riverrun.rows": riverrun_layer,
    "nn.GRU": lambda width: Sequences(nn.GRU(width, width, batch_first=True)),
    "nn.LSTM": lambda width: Sequences(nn.LSTM(width, width, batch_first=True)),
    "fla.GDN": fla_layer,
}


class Block(nn.Module):
    def __init__(self, width, recurrent):
        super().__init__()
        self.norm_cell, self.cell = nn.RMSNorm(width), recurrent(width)
        self.norm_mlp = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.cell(self.norm_cell(x))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, width, layers, vocab, recurrent):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*(Block(width, recurrent) for _ in range(layers)))
        self.norm, self.out = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens, targets):
        """The loss too, so that the compiler has it whole."""
        logits = self.out(self.norm(self.blocks(self.embedding(tokens))))
        return self.loss(logits.flatten(0, 1), targets.flatten())

    @staticmethod
    def loss(logits, targets):
        return F.cross_entropy(logits.float(), targets)


# The fastest first; what the device or the problem excludes is passed over.
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def build(routine, shape, device):
    """The model of a routine without its suffix `-graph`, the form that runs, and how far above a guess its loss may start."""
    width, layers, _, steps, vocab = shape
    family, _, form = routine.rpartition("-")
    above = 0.2 * math.log(vocab)
    if form == "fused":
        import fused_scan
    if family == "griffin":
        import griffin

        operator = fused_scan.rg_lru if form == "fused" else griffin.rg_lru
        griffin.check(device, operator)
        model = griffin.Griffin(width, layers, steps, vocab, operator).to(device)
        model.prepare(device, steps)
        # It first expects the token that it has just read: its logits have the embedding's weights.
        above = width**0.5
    elif family == "gpt2":
        import gpt2

        model = gpt2.Gpt2(width, layers, steps, vocab).to(device)
    else:
        if form == "fused":
            fused_scan.check(device)
        model = Model(width, layers, vocab, RECURRENT[routine]).to(device)
        if routine == "riverrun.rows":
            with_riverrun_rows(model)
    return model, model if form == "eager" else torch.compile(model, dynamic=False), above


def record(step):
    """The step as one CUDA graph, after the steps that compile, tune and allocate; the losses of the first of them and, once it
    is replayed, of the last."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first = step()
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = step()
    return graph.replay, first, last


def measure(routine, shape, dtype, device, steps):
    _, _, batch, length, vocab = shape
    cuda = device.type == "cuda"
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch._dynamo.reset()
    recorded = routine.endswith("-graph")
    model, run, above = build(routine.removesuffix("-graph"), shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=recorded)
    inputs, targets = torch.randint(0, vocab, (2, batch, length), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = run(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    start = time.perf_counter()
    call, first_loss, last_loss = record(step) if recorded else (step, step(), None)

    wait()
    first = time.perf_counter() - start

    def timed():
        start = time.perf_counter()
        loss = call()
        wait()
        return time.perf_counter() - start, loss

    for _ in range(4):
        _, loss = timed()
    losses = [first_loss.item(), (last_loss if recorded else loss).item()]
    guess = math.log(vocab)
    if not (0.8 * guess < losses[0] < guess + above and losses[1] < losses[0]):
        raise RuntimeError(f"the loss went from {losses[0]:.4f} to {losses[1]:.4f}, a guess has {guess:.4f}")
    seconds = sorted(timed()[0] for _ in range(steps))
    at = lambda part: seconds[round((len(seconds) - 1) * part)]
    median = statistics.median(seconds)
    return {
        "step": {"median": median, "low": at(0.2), "high": at(0.8), "samples": len(seconds)},
        "tokens_per_s": batch * length / median,
        "first_step": first,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": losses,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--routines", help="separated by commas [default: those above but eager on a GPU]")
    parser.add_argument("--dtypes", help="f32, f16, bf16, separated by commas [default: bf16 on a GPU, f32 on the CPU]")
    parser.add_argument("--shapes", help="WIDTHxLAYERSxBATCHxSTEPSxVOCAB, separated by commas")
    parser.add_argument("--steps", type=int, default=12, help="timed steps")
    parser.add_argument("--wrong-gradients", action="store_true", help="time FLA where it refuses to compute wrong gradients")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.wrong_gradients:
        from gated_delta import allow_wrong_gradients

        allow_wrong_gradients()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    formats = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    dtypes = args.dtypes or ("bf16" if device.type == "cuda" else "f32")
    rows = []
    for text in (args.shapes or SHAPES[device.type]).split(","):
        shape = tuple(map(int, text.split("x")))
        for dtype in dtypes.split(","):
            for routine in (args.routines or ROUTINES[device.type]).split(","):
                try:
                    with sdpa_kernel(ATTENTION, set_priority=True):
                        found = measure(routine, shape, formats[dtype], device, args.steps)
                except Exception as error:  # A compiler that is missing, or memory: the others go on.
                    print(f"{text:<24} {dtype:<5} {routine:<21} failed: {str(error)[:120]}", flush=True)
                    continue
                names = ("width", "layers", "batch", "steps", "vocab")
                rows.append(dict(zip(names, shape)) | dict(program="torch", routine=routine, dtype=dtype) | found)
                peak = f"{found['peak_bytes'] / 1e6:.0f} MB" if found["peak_bytes"] else ""
                print(
                    f"{text:<24} {dtype:<5} {routine:<21} {found['tokens_per_s'] / 1e3:9.1f} ktok/s"
                    f" {found['step']['median'] * 1e3:9.2f} ms/step  first {found['first_step']:.1f} s  {peak}",
                    flush=True,
                )
    if args.json:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        report = dict(command=" ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), name=name, version=f"torch {torch.__version__}", rows=rows)
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
