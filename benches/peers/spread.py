#!/usr/bin/env python3
"""Several GPUs in PyTorch, beside `riverrun bench collectives` and `riverrun bench train` under `riverrun launch`.

  torchrun --nproc-per-node 2 benches/peers/spread.py collectives
  torchrun --nproc-per-node 2 benches/peers/spread.py train

`collectives` times sums by NCCL, eager and as one CUDA graph of 20, which is how riverrun's steps have them. `train` times the training
steps of train.py's fused form on the first rank alone, and by DistributedDataParallel on all ranks with the same batch each.
A sum is checked before it is timed, and a model whose loss does not fall is not timed.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

CALLS = 20


def slowest(seconds, device):
    """The median over the timings of the slowest rank's seconds."""
    seconds = torch.tensor(seconds, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return statistics.median(seconds.tolist())


def timed(call, device, count):
    seconds = []
    for _ in range(count):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return slowest(seconds, device)


def collectives(args, device):
    for size in args.bytes.split(","):
        vector = torch.full((int(size) // 4,), float(dist.get_rank() + 1), device=device)
        dist.all_reduce(vector)
        ranks = dist.get_world_size()
        assert (vector == ranks * (ranks + 1) / 2).all(), "the sum is wrong"
        vector.zero_()

        def calls():
            for _ in range(CALLS):
                dist.all_reduce(vector)

        calls()
        eager = timed(calls, device, 20) / CALLS
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls()
        graph.replay()
        recorded = timed(graph.replay, device, 20) / CALLS
        if dist.get_rank() == 0:
            print(
                f"torch all_reduce {int(size):>12} bytes  eager {eager * 1e3:8.4f} ms  recorded {recorded * 1e3:8.4f} ms"
                f" {int(size) / recorded / 1e9:8.2f} GB/s",
                flush=True,
            )


def steps(shape, device, spread):
    import train

    _, _, batch, length, vocab = shape
    torch._dynamo.reset()
    model, run, _ = train.build("fused", shape, device)
    if spread:
        run = torch.compile(nn.parallel.DistributedDataParallel(model, device_ids=[device.index], gradient_as_bucket_view=True), dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs, targets = torch.randint(0, vocab, (2, batch, length), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    first = step()
    for _ in range(6):
        last = step()
    assert last.item() < first.item(), f"the loss went from {first.item()} to {last.item()}"
    return step


def training(args, device):
    sys.path.insert(0, os.path.dirname(__file__))
    for text in args.shapes.split(","):
        shape = tuple(map(int, text.split("x")))
        alone = steps(shape, device, False) if dist.get_rank() == 0 else lambda: None
        one = timed(alone, device, args.steps)
        del alone
        torch.cuda.empty_cache()
        all_ranks = timed(steps(shape, device, True), device, args.steps)
        if dist.get_rank() == 0:
            ranks = dist.get_world_size()
            print(
                f"torch {text:<24} one {one * 1e3:8.2f} ms  {ranks} ranks {all_ranks * 1e3:8.2f} ms  scaling {ranks * one / all_ranks:.3f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["collectives", "train"])
    parser.add_argument("--bytes", default="4096,1048576,16777216,67108864,1073741824")
    parser.add_argument("--shapes", default="512x6x64x1024x65,768x12x16x1024x50257")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("nccl", device_id=device)
    {"collectives": collectives, "train": training}[args.part](args, device)
    dist.destroy_process_group()


main()
