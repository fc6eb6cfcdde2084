#!/usr/bin/env python3
"""Reads a run's event file by TensorBoard's own reader, and holds it against the run's metrics.

    riverrun train --task xor --tensorboard --out RUN && python3 check_tensorboard.py RUN      (needs tensorboard)
"""
import json
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = pathlib.Path(sys.argv[1])
events = EventAccumulator(str(run))
events.Reload()
reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
held = 0
for tag, split, field in [
    ("loss/train", "train", "loss"),
    ("loss/validation", "validation", "loss"),
    ("accuracy/validation", "validation", "accuracy"),
    ("learning_rate", "train", "lr"),
]:
    expected = [(report["step"], report[field]) for report in reports if report["split"] == split]
    found = [(event.step, event.value) for event in events.Scalars(tag)]
    assert len(found) == len(expected), (tag, len(found), len(expected))
    for (step, value), (expected_step, expected_value) in zip(found, expected):
        assert step == expected_step, (tag, step, expected_step)
        # Values are 32-bit floats there.
        assert abs(value - expected_value) <= 1e-7 * max(1.0, abs(expected_value)), (tag, step, value, expected_value)
        held += 1
print(f"{held} values of TensorBoard are those of metrics.jsonl")
assert held > 0
