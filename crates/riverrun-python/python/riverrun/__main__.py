"""`python -m riverrun verify|bench|devices`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

import riverrun


def _verify(options) -> int:
    rows = riverrun.verify(options.seed, options.device)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        names = list(dict.fromkeys(row.operation for row in rows))
        width = max(map(len, names))
        for name in names:
            of = [row for row in rows if row.operation == name]
            checks = (f"{row.dtype} {row.what} {'ok' if row.passed else f'FAILED ({row.error:.3g} of 1)'}" for row in of)
            print(f"{name:<{width}}  {', '.join(row for row in checks)}")
    failed = sum(not row.passed for row in rows)
    if not options.json:
        machine = riverrun.devices()
        place = f"{machine['processor']}, {machine['simd'][0]}, {machine['threads']} threads"
        if options.device != "cpu":
            place = next((gpu["name"] for gpu in machine["gpus"] if gpu["device"] == options.device), options.device)
        print(f"{len(rows) - failed} passed, {failed} failed on {place}")
    return 1 if failed else 0


def _seconds(value):
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def _bench(options) -> int:
    try:
        import torch
    except ImportError:
        print("riverrun bench: PyTorch is not installed, beside which operations are measured", file=sys.stderr)
        return 2
    from riverrun._bench import bench

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rows = []
    if not options.json:
        place = f"{torch.get_num_threads()} threads" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
        conditions = f"{options.dtype}, {place}, PyTorch {torch.__version__}"
        print(f"forward and backward, {conditions}; medians (20th to 80th percentile)")
    for row in bench(options.seconds, options.small, options.device, options.dtype):
        rows.append(row)
        if not options.json:
            ours, theirs = (
                f"{_seconds(median)} ({_seconds(low)} to {_seconds(high)})"
                for median, (low, high) in ((row.ours, row.ours_spread), (row.theirs, row.theirs_spread))
            )
            print(f"{row.name}: riverrun {ours}, PyTorch {theirs}: {row.ratio:.2f} times", flush=True)
    if options.json:
        machine = {**riverrun.devices(), "threads": torch.get_num_threads(), "load": os.getloadavg()[0]}
        versions = {"riverrun": riverrun.__version__, "torch": torch.__version__}
        print(json.dumps({**versions, **machine, "rows": [{**asdict(row), "ratio": row.ratio} for row in rows]}, indent=1))
    return 0


def _devices(options) -> int:
    machine = riverrun.devices()
    if options.json:
        print(json.dumps(machine))
    else:
        print(f"{machine['device']}: {machine['processor']}")
        print(f"  vector instructions: {machine['simd'][0]} (of {', '.join(machine['simd'])})")
        print(f"  threads: {machine['threads']} of {machine['parallelism']}")
        for gpu in machine["gpus"]:
            print(f"{gpu['device']}: {gpu['name']}")
            if "missing" in gpu:
                print(f"  missing: {gpu['missing']}")
            else:
                print(f"  compute capability {gpu['capability']}, {gpu['multiprocessors']} multiprocessors, {gpu['compiler']}")
    return 0


def main(arguments=None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m riverrun", description="riverrun's kernels on this machine")
    parser.add_argument("--version", action="version", version=riverrun.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="check every operation against a float64 reference")
    verify.add_argument("--seed", type=int, default=0, help="seed of the data (0)")
    verify.set_defaults(run=_verify)
    bench = commands.add_parser("bench", help="measure operations beside PyTorch's own")
    bench.add_argument("--seconds", type=float, default=3.0, help="time of each operation (3)")
    bench.add_argument("--threads", type=int, help="PyTorch's number of threads")
    bench.add_argument("--small", action="store_true", help="small sizes, to try the command")
    bench.set_defaults(run=_bench)
    devices = commands.add_parser("devices", help="what this machine has")
    devices.set_defaults(run=_devices)
    for command in (verify, bench):
        command.add_argument("--device", default="cpu", help="cpu, or a GPU of PyTorch's, such as cuda:0 (cpu)")
    dtypes = ("float32", "float16", "bfloat16")
    bench.add_argument("--dtype", choices=dtypes, default="float32", help="type of the elements (float32)")
    for command in (verify, bench, devices):
        command.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
