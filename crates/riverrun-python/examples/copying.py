"""Selective copying: find the data tokens scattered among blanks, then repeat them in order.

    python examples/copying.py

Three layers of minGRU, each with a norm and a small perceptron. Gu & Dao, *Mamba* (2023), section 4.1.1.
"""

import argparse

import torch
from torch import nn

import riverrun.torch as rr

BLANK, ASK, VALUES = 0, 1, 8


def batch(count, blanks, tokens):
    """Inputs `[count, blanks + 2 * tokens]` and targets, -1 where nothing is asked."""
    steps = blanks + tokens
    data = torch.randint(2, 2 + VALUES, (count, tokens))
    places = torch.rand(count, steps).argsort(1)[:, :tokens].sort(1).values
    x = torch.full((count, steps + tokens), BLANK)
    x.scatter_(1, places, data)
    x[:, steps:] = ASK
    targets = torch.full_like(x, -1)
    targets[:, steps:] = data
    return x, targets


class Block(nn.Module):
    def __init__(self, width, memory):
        super().__init__()
        self.weights = nn.ParameterList([torch.ones(width), torch.ones(width)])
        self.recurrence = rr.MinGRU(width, width, memory=memory)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.recurrence(rr.rms_norm(x, self.weights[0]))[0]
        return x + self.perceptron(rr.rms_norm(x, self.weights[1]))


class Model(nn.Module):
    def __init__(self, width, steps):
        super().__init__()
        self.embedding = nn.Embedding(2 + VALUES, width)
        # Channels that remember from 1 step to the whole sequence.
        self.blocks = nn.Sequential(*(Block(width, steps) for _ in range(3)))
        self.head = nn.Linear(width, 2 + VALUES)

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="updates of the weights (1000)")
    parser.add_argument("--blanks", type=int, default=64, help="blanks of a sequence (64)")
    parser.add_argument("--tokens", type=int, default=4, help="tokens to copy (4)")
    parser.add_argument("--quick", action="store_true", help="a few updates of a small model")
    options = parser.parse_args()
    updates, every, width = (options.steps, 100, 64) if not options.quick else (30, 10, 32)
    torch.manual_seed(0)
    model = Model(width, options.blanks + 2 * options.tokens)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for update in range(updates):
        x, targets = batch(32, options.blanks, options.tokens)
        logits = model(x)
        loss = rr.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % every == every - 1 or update == 0:
            asked = targets >= 0
            right = (logits.argmax(2) == targets)[asked].float().mean()
            print(f"update {update + 1}: loss {loss.item():.4f}, accuracy {right:.1%}", flush=True)


if __name__ == "__main__":
    main()
