"""Sensor data with resets and lengths: several recordings in a row of a batch, each row to its own end.

    python examples/sensors.py

A noisy sensor follows a level that drifts; a recording may end at any step, and the next one begins there at another level.
The model sees the reading and whether a recording begins, and estimates the level. `reset` keeps one recording's state from
the next; packed sequences keep padding out of the loss, and out of the backward direction.
"""

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import riverrun.torch as rr


def batch(count, steps):
    """Readings and levels, `[count, steps]`, marks of recordings that begin, and lengths of rows, `[count]`."""
    reset = torch.rand(count, steps) < 0.03
    reset[:, 0] = True
    starts = torch.randn(count, steps) * 2
    drift = torch.randn(count, steps) * 0.05
    # Within a recording the level is a sum of its drifts: a scan that starts again at every reset.
    keep = torch.where(reset, 0.0, 1.0)[..., None]
    level = rr.linear_scan(keep, torch.where(reset, starts, drift)[..., None])[..., 0]
    readings = level + torch.randn(count, steps)
    lengths = torch.randint(steps // 2, steps + 1, (count,))
    return readings, level, reset, lengths


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.recurrence = rr.LSTM(2, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, readings, reset, lengths):
        x = torch.stack([readings, reset.float()], 2)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        longest = int(lengths.max())
        h, _ = self.recurrence(packed, reset=reset[:, :longest])
        # The mean of nothing but real steps.
        return h._replace(data=self.head(h.data)[:, 0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="updates of the weights (600)")
    parser.add_argument("--quick", action="store_true", help="a few updates of a small model")
    options = parser.parse_args()
    updates, every, width = (40, 10, 16) if options.quick else (options.steps, 50, 48)
    torch.manual_seed(0)
    model = Model(width)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2 if options.quick else 3e-3)
    for update in range(updates):
        readings, level, reset, lengths = batch(32, 120)
        estimate = model(readings, reset, lengths)
        target = pack_padded_sequence(level, lengths, batch_first=True, enforce_sorted=False)
        loss = (estimate.data - target.data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % every == every - 1 or update == 0:
            print(f"update {update + 1}: loss {loss.item():.4f}; the readings themselves have 1", flush=True)


if __name__ == "__main__":
    main()
