#!/usr/bin/env python3
"""Plain training beside averages of the weights: steps and seconds to the same validation loss.

    benches/averages.py search RUNG... --out FILE    learning rates and decays of both, then three seeds of the best of each
    benches/averages.py seconds RUNG... --out FILE   one run after another, as SECONDS has them, for their times

Rungs: text, digits, lm. TEXT is a text file, MNIST the folder of its four files, RIVERRUN the program. Plain runs warm up, then the
learning rate falls by a cosine to a tenth; averaged ones keep it. The target is the mean of plain training's last losses.
"""

import argparse
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

RIVERRUN = os.environ.get("RIVERRUN", "target/release/riverrun")
TEXT = os.environ.get("TEXT", "tinyshakespeare.txt")
MNIST = os.environ.get("MNIST", "mnist")
DEVICE = os.environ.get("DEVICE", "cuda:0")
DECAYS = [0.98, 0.99]

# Options, steps, steps between evaluations, learning rates.
RUNGS = {
    "text": (f"{TEXT} --layers 2 --width 64 --context 64 --batch 16", 1500, 50, [2e-3, 4e-3, 8e-3, 1.6e-2]),
    "digits": (f"--task digits --data {MNIST} --net conv --batch 64", 1800, 60, [1e-3, 2e-3, 4e-3]),
    "lm": (f"{TEXT} --layers 6 --width 384 --context 256 --batch 64 --dropout 0.2", 900, 45, [1e-3, 2e-3, 4e-3]),
}

# Learning rates and steps: plain, averaged, and plain in the steps of the averaged.
SECONDS = {
    "digits": [(4e-3, None, 1800), (4e-3, 0.99, 1440), (4e-3, None, 1440)],
    "lm": [(2e-3, None, 900), (4e-3, 0.99, 540), (2e-3, None, 540), (4e-3, None, 540)],
}


def train(rung, rate, decay, seed, steps=None, folder=None):
    """One run: its evaluations, as [step, loss, seconds]."""
    options, whole, every, _ = RUNGS[rung]
    steps = steps or whole
    words = [*options.split(), "--steps", str(steps), "--eval-every", str(every), "--lr", str(rate), "--seed", str(seed)]
    if decay is not None:
        words += ["--schedule", "constant", "--average", str(decay)]
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "run")
        command = [RIVERRUN, "train", *words, "--device", DEVICE, "--out", out, "--quiet"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as lines:
            found = [json.loads(line) for line in lines]
    found = [[line["step"], round(line["loss"], 4), round(line["seconds"], 2)] for line in found if line["split"] != "train"]
    return {"rate": rate, "average": decay, "seed": seed, "steps": steps, "validation": found}


def last(run):
    return run["validation"][-1][1]


def reached(run, target):
    """The step of the first evaluation that is not above the target."""
    return next((step for step, loss, _ in run["validation"] if loss <= target), None)


def search(rung):
    *_, rates = RUNGS[rung]
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(train, rung, rate, decay, 0) for rate in rates for decay in [None, *DECAYS]]
        first = [job.result() for job in jobs]
        plain = min((run for run in first if run["average"] is None), key=last)
        averaged = [run for run in first if run["average"] is not None]
        best = min(averaged, key=lambda run: (reached(run, last(plain)) or 1 << 30, last(run)))
        jobs = [pool.submit(train, rung, run["rate"], run["average"], seed) for run in (plain, best) for seed in (1, 2)]
        more = [job.result() for job in jobs]
    plain, best = [plain, *more[:2]], [best, *more[2:]]
    target = sum(map(last, plain)) / len(plain)
    steps = [reached(run, target) for run in best]
    print(f"{rung}: plain {plain[0]['rate']} ends at {[last(run) for run in plain]}, mean {target:.4f}")
    print(f"{rung}: average {best[0]['average']} at {best[0]['rate']} is there after {steps} of {plain[0]['steps']} steps, "
          f"ends at {[last(run) for run in best]}", flush=True)
    return first + more


def seconds(rung):
    runs = [train(rung, rate, decay, seed, steps) for seed in range(3) for rate, decay, steps in SECONDS[rung]]
    for rate, decay, steps in SECONDS[rung]:
        same = [run for run in runs if (run["rate"], run["average"], run["steps"]) == (rate, decay, steps)]
        losses, times = [last(run) for run in same], [run["validation"][-1][2] for run in same]
        print(f"{rung}: {steps} steps at {rate}, average {decay}: losses {losses}, mean {sum(losses) / 3:.4f}; seconds {times}", flush=True)
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "seconds"])
    parser.add_argument("rungs", nargs="+", choices=list(RUNGS))
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    found = {rung: (search if args.what == "search" else seconds)(rung) for rung in args.rungs}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(found, file)


main()
