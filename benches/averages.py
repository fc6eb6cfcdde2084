#!/usr/bin/env python3
"""Plain training beside averages of the weights: steps and seconds to the same validation loss.

    benches/averages.py search RUNG... --out FILE                   learning rates of every method, then three seeds of the best of each
    benches/averages.py seconds RUNG... --from SEARCHED --out FILE   those, one run after another, for their times

Rungs: xor, text, digits, digits2, lm. TEXT is a text file, MNIST the folder of its four files, RIVERRUN the program, DEVICE the device.
Plain runs warm up, then the learning rate falls by a cosine to a tenth, or stays; averaged ones keep it. The target is the mean of
plain training's last losses.
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
SEEDS = 3

# The options of each.
PLAIN = {"cosine": "", "constant": "--schedule constant"}
AVERAGED = {decay: f"--schedule constant --average {decay}" for decay in ("0.98", "0.99")}
METHODS = {**PLAIN, **AVERAGED}

# Options, steps, steps between evaluations, learning rates.
RUNGS = {
    "xor": ("--task xor", 500, 10, [0.05, 0.1, 0.2, 0.4, 0.8]),
    "text": (f"{TEXT} --layers 2 --width 64 --context 64 --batch 16", 1500, 50, [2e-3, 4e-3, 8e-3, 1.6e-2]),
    "digits": (f"--task digits --data {MNIST} --net conv --batch 64", 1800, 60, [1e-3, 2e-3, 4e-3]),
    "digits2": (f"--task digits --data {MNIST} --net conv2 --batch 64", 2700, 90, [2e-3, 4e-3]),
    "lm": (f"{TEXT} --layers 6 --width 384 --context 256 --batch 64 --dropout 0.2", 900, 45, [1e-3, 2e-3, 4e-3]),
}


def train(rung, rate, method, seed, steps=None):
    """One run: its evaluations, as [step, loss, seconds]."""
    options, whole, every, _ = RUNGS[rung]
    steps = steps or whole
    words = [*options.split(), *METHODS[method].split(), "--steps", str(steps), "--eval-every", str(every), "--lr", str(rate), "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "run")
        command = [RIVERRUN, "train", *words, "--device", DEVICE, "--out", out, "--quiet"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as lines:
            found = [json.loads(line) for line in lines]
    found = [[line["step"], float(f"{line['loss']:.4g}"), round(line["seconds"], 3)] for line in found if line["split"] != "train"]
    return {"rate": rate, "method": method, "seed": seed, "steps": steps, "validation": found}


def last(run):
    return run["validation"][-1][1]


def reached(run, target):
    """The step of the first evaluation that is not above the target."""
    return next((step for step, loss, _ in run["validation"] if loss <= target), None)


def of(runs, best):
    """The runs of the same method and learning rate in order of their seeds."""
    same = [run for run in runs if (run["rate"], run["method"]) == (best["rate"], best["method"])]
    return sorted(same, key=lambda run: run["seed"])


def chosen(runs):
    """The best plain runs, the best averaged ones, and the target."""
    first = [run for run in runs if run["seed"] == 0]
    plain = min((run for run in first if run["method"] in PLAIN), key=last)
    averaged = [run for run in first if run["method"] in AVERAGED]
    best = min(averaged, key=lambda run: (reached(run, last(plain)) or 1 << 30, last(run)))
    plain, best = of(runs, plain), of(runs, best)
    return plain, best, sum(map(last, plain)) / len(plain)


def search(rung, _):
    *_, rates = RUNGS[rung]
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(train, rung, rate, method, 0) for rate in rates for method in METHODS]
        runs = [job.result() for job in jobs]
        jobs = [pool.submit(train, rung, best[0]["rate"], best[0]["method"], seed) for best in chosen(runs)[:2] for seed in range(1, SEEDS)]
        runs += [job.result() for job in jobs]
    plain, best, target = chosen(runs)
    steps = [reached(run, target) for run in best]
    print(f"{rung}: plain, {plain[0]['method']} from {plain[0]['rate']}, ends at {[last(run) for run in plain]}, mean {target:.4g}")
    print(f"{rung}: average {best[0]['method']} at {best[0]['rate']} is there after {steps} of {plain[0]['steps']} steps, "
          f"ends at {[last(run) for run in best]}", flush=True)
    return runs


def seconds(rung, searched):
    plain, best, target = chosen(searched[rung])
    steps = [reached(run, target) for run in best]
    if None in steps:
        print(f"{rung}: the averages do not get to {target:.4g}")
        return []
    fewer = max(steps)
    ways = [(plain[0], None), (best[0], fewer), (plain[0], fewer)]
    runs = [[train(rung, way["rate"], way["method"], seed, steps) for way, steps in ways] for seed in range(SEEDS)]
    for way in zip(*runs):
        losses, times = [last(run) for run in way], [run["validation"][-1][2] for run in way]
        print(f"{rung}: {way[0]['steps']} steps, {way[0]['method']} {way[0]['rate']}: losses {losses}, mean {sum(losses) / SEEDS:.4g}; "
              f"seconds {times}", flush=True)
    return [run for seed in runs for run in seed]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "seconds"])
    parser.add_argument("rungs", nargs="+", choices=list(RUNGS))
    parser.add_argument("--from", dest="searched")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    searched = {}
    if args.searched:
        with open(args.searched, encoding="utf-8") as file:
            searched = json.load(file)
    found = {}
    for rung in args.rungs:
        found[rung] = (search if args.what == "search" else seconds)(rung, searched)
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(found, file)


main()
