#!/usr/bin/env python3
"""Transfers between host and GPU in PyTorch, from pageable and from pinned memory, beside `riverrun bench transfer`.

    benches/peers/transfer.py [--bytes 4096,65536,...]
"""
import argparse
import statistics
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--bytes", default="4096,65536,1048576,16777216,268435456")
args = parser.parse_args()


def timed(call):
    seconds, end = [], time.perf_counter() + 0.2
    while time.perf_counter() < end or len(seconds) < 5:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


for size in map(int, args.bytes.split(",")):
    host = torch.arange(size // 4, dtype=torch.float32)
    pinned, device = host.pin_memory(), host.cuda()
    assert torch.equal(device.cpu(), host)
    ways = {
        "to, pageable": lambda: host.cuda(),
        "to, pinned": lambda: pinned.cuda(non_blocking=True),
        "from, pageable": lambda: device.cpu(),
        "from, pinned": lambda: pinned.copy_(device, non_blocking=True),
    }
    print(f"{size:10} bytes", *(f"{name} {1e6 * (s := timed(call)):9.1f} us {size / s / 1e9:6.2f} GB/s" for name, call in ways.items()), sep="  ")
