#!/usr/bin/env python3
"""Plain training beside averages of the weights and hybrid training: steps and seconds to the same validation loss.

    benches/averages.py search RUNG... --out FILE                   learning rates of every method, then three seeds of the best of each
    benches/averages.py seconds RUNG... --from SEARCHED --out FILE   those, one run after another, for their times
    benches/averages.py rates RUNG... [--seeds 3] --out FILE        learning rates of plain training
    benches/averages.py predictors RUNG... --from RATES --out FILE   plain training at the best of them beside every predictor, in turns

Rungs: xor, text, digits, digits2, lm. TEXT is a text file, MNIST the folder of its four files, RIVERRUN the program, DEVICE the device,
JOBS the runs at once in a search. Plain runs warm up, then the learning rate falls by a cosine to a tenth, or stays; averaged ones keep
it. The target is the mean of plain training's last losses.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

RIVERRUN = os.environ.get("RIVERRUN", "target/release/riverrun")
TEXT = os.environ.get("TEXT", "tinyshakespeare.txt")
MNIST = os.environ.get("MNIST", "mnist")
DEVICE = os.environ.get("DEVICE", "cuda:0")
JOBS = int(os.environ.get("JOBS", "6"))
SEEDS = 3

# The options of each.
PLAIN = {"cosine": "", "constant": "--schedule constant"}
AVERAGED = {decay: f"--schedule constant --average {decay}" for decay in ("0.98", "0.99")}
# `taught` is an ensemble that has learned from plain runs of the other rungs; "alone" does not fall back on the last update.
PREDICTORS = {
    "plain": "",
    "last-update": "--hybrid balanced",
    "average": "--hybrid balanced --predictor average",
    "acceleration": "--hybrid balanced --predictor acceleration",
    "linear alone": "--hybrid balanced --predictor linear --without fallback",
    "ensemble": "--hybrid balanced --predictor ensemble",
    "ensemble alone": "--hybrid balanced --predictor ensemble --without fallback",
    "taught alone": "--hybrid balanced --predictor {taught} --without fallback",
}
METHODS = {**PLAIN, **AVERAGED}

# Options, steps, steps between evaluations, learning rates.
RUNGS = {
    "xor": ("--task xor --dtype f32", 500, 10, [0.05, 0.1, 0.2, 0.4, 0.8]),
    "text": (f"{TEXT} --layers 2 --width 64 --context 64 --batch 16", 1500, 50, [2e-3, 4e-3, 8e-3, 1.6e-2]),
    "digits": (f"--task digits --data {MNIST} --net conv --batch 64", 1800, 60, [1e-3, 2e-3, 4e-3]),
    "digits2": (f"--task digits --data {MNIST} --net conv2 --batch 64", 2700, 90, [2e-3, 4e-3]),
    "lm": (f"{TEXT} --layers 6 --width 384 --context 256 --batch 64 --dropout 0.2", 900, 45, [1e-3, 2e-3, 4e-3]),
}


def run(rung, rate, options, seed, steps, out):
    """Trains in the folder `out`, and reads its metrics."""
    words = [*RUNGS[rung][0].split(), *options.split(), "--steps", str(steps), "--eval-every", str(RUNGS[rung][2])]
    command = [RIVERRUN, "train", *words, "--lr", str(rate), "--seed", str(seed), "--device", DEVICE, "--out", out, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def train(rung, rate, method, seed, steps=None, more=""):
    """One run: its evaluations, as [step, loss, seconds, backward passes], and the counts of a hybrid run."""
    steps = steps or RUNGS[rung][1]
    with tempfile.TemporaryDirectory() as scratch:
        lines = run(rung, rate, f"{METHODS[method]} {more}", seed, steps, os.path.join(scratch, "run"))
    found, counts = [], None
    for line in lines:
        if line["split"] == "train":
            counts = (line.get("hybrid") or {}).get("counts")
            continue
        real = counts["real"] if counts else line["step"]
        found.append([line["step"], float(f"{line['loss']:.4g}"), round(line["seconds"], 3), real])
    return {"rate": rate, "method": method, "seed": seed, "steps": steps, "validation": found, "counts": counts}


def last(run):
    return run["validation"][-1][1]


def reached(run, target):
    """The step of the first evaluation that is not above the target."""
    return next((step for step, loss, *_ in run["validation"] if loss <= target), None)


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
    with ThreadPoolExecutor(JOBS) as pool:
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


def rates(rung, seeds):
    with ThreadPoolExecutor(JOBS) as pool:
        jobs = [pool.submit(train, rung, rate, method, seed) for rate in RUNGS[rung][3] for method in PLAIN for seed in range(seeds)]
        runs = [job.result() for job in jobs]
    for run in runs[::seeds]:
        print(f"{rung}: {run['method']} {run['rate']}: {', '.join(str(last(same)) for same in of(runs, run))}", flush=True)
    return runs


def best_plain(runs):
    """A plain run of the rate and schedule that have the least mean loss."""
    return min((run for run in runs if run["method"] in PLAIN), key=lambda run: statistics.mean(map(last, of(runs, run))))


WATCHED = tempfile.TemporaryDirectory()


def teach(rung, searched):
    """The file of an ensemble that has learned from plain runs of the other rungs at their best rates."""
    seen = {other: os.path.join(WATCHED.name, other) for other in searched if other != rung}
    for other, folder in seen.items():
        if not os.path.exists(folder):
            best = best_plain(searched[other])
            run(other, best["rate"], f"{PLAIN[best['method']]} --hybrid watch", 100, RUNGS[other][1], folder)
    out = os.path.join(WATCHED.name, f"{rung}.safetensors")
    said = subprocess.run([RIVERRUN, "hybrid", "learn", *seen.values(), "--device", DEVICE, "--out", out, "--quiet"],
                          check=True, stdout=subprocess.PIPE, text=True, timeout=900)
    print(said.stdout, end="", flush=True)
    return out


def predictors(rung, searched, names):
    """Plain training and the predictors in turns, seed by seed: gives the runs so far after each."""
    plain = best_plain(searched[rung])
    taught = teach(rung, searched) if any("{taught}" in PREDICTORS[name] for name in names) else None
    runs = []
    for seed in range(SEEDS):
        for name in names:
            more = PREDICTORS[name].format(taught=taught)
            runs.append({**train(rung, plain["rate"], plain["method"], seed, more=more), "predictor": name})
            yield runs


def table(rung, runs):
    """Prints what it took to reach the mean of plain training's last losses."""
    first = runs[0]
    target = statistics.mean(last(run) for run in runs if run["predictor"] == "plain")
    print(f"{rung}: plain training, {first['method']} from {first['rate']}, {first['steps']} steps; to its mean last loss, {target:.4g}")
    print(f"{'predictor':<16} {'last losses':<26} {'backward passes to it':<23} {'seconds to it':<23} {'in all':<21} predictions, fallbacks, taken back")
    for name in dict.fromkeys(run["predictor"] for run in runs):
        own = [run for run in runs if run["predictor"] == name]
        there = [next((line for line in run["validation"] if line[1] <= target), None) for run in own]
        show = lambda at, form: ", ".join(format(line[at], form) if line else "-" for line in there)
        counts = [run["counts"] or {} for run in own]
        counts = "; ".join(", ".join(str(count.get(of, 0)) for of in ("predictions", "fallbacks", "failures")) for count in counts)
        losses = ", ".join(f"{last(run):.4g}" for run in own)
        whole = ", ".join(f"{run['validation'][-1][2]:.2f}" for run in own)
        print(f"{name:<16} {losses:<26} {show(3, 'd'):<23} {show(2, '.2f'):<23} {whole:<21} {counts}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "seconds", "rates", "predictors"])
    parser.add_argument("rungs", nargs="+", choices=list(RUNGS))
    parser.add_argument("--from", dest="searched")
    parser.add_argument("--out", required=True)
    parser.add_argument("--predictors", default=",".join(PREDICTORS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="runs of a learning rate, for `rates`")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no run begins")
    args = parser.parse_args()
    start = time.monotonic()
    searched = {}
    if args.searched:
        with open(args.searched, encoding="utf-8") as file:
            searched = json.load(file)
    found = {}
    for rung in args.rungs:
        if args.what == "predictors":
            for found[rung] in predictors(rung, searched, args.predictors.split(",")):
                with open(args.out, "w", encoding="utf-8") as file:
                    json.dump(found, file)
                if time.monotonic() - start > args.budget:
                    break
            table(rung, found[rung])
            continue
        found[rung] = {"search": search, "seconds": seconds, "rates": lambda rung, _: rates(rung, args.seeds)}[args.what](rung, searched)
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(found, file)


main()
