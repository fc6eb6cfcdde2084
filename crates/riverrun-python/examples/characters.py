"""A character model: learn a text, then continue it one character at a time.

    python examples/characters.py [text file]

Without a file it learns the text of this program. The state is carried from each step to the next, and the last state of a
training chunk into the next chunk.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import riverrun.torch as rr


class Model(nn.Module):
    def __init__(self, characters, width):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.recurrence = rr.GRU(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, x, state=None):
        h, state = self.recurrence(self.embedding(x), state)
        return self.head(h), state


def rows(text, characters, count):
    """The text in `count` rows side by side, as indices."""
    index = {character: i for i, character in enumerate(characters)}
    data = torch.tensor([index[character] for character in text])
    return data[: len(data) // count * count].view(count, -1)


@torch.no_grad()
def continued(model, characters, prompt, length):
    """The prompt and `length` more characters."""
    index = {character: i for i, character in enumerate(characters)}
    logits, state = model(torch.tensor([[index[character] for character in prompt]]))
    out = list(prompt)
    for _ in range(length):
        next_one = torch.multinomial(torch.softmax(logits[:, -1] / 0.7, 1), 1)
        out.append(characters[next_one.item()])
        logits, state = model(next_one, state)
    return "".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path, default=Path(__file__), help="a text file (this program)")
    parser.add_argument("--epochs", type=int, default=20, help="passes through the text (20)")
    parser.add_argument("--quick", action="store_true", help="two passes of a small model")
    options = parser.parse_args()
    width, epochs = (32, 2) if options.quick else (192, options.epochs)
    torch.manual_seed(0)
    text = options.text.read_text(encoding="utf-8")
    characters = sorted(set(text))
    data = rows(text, characters, 8)
    model = Model(len(characters), width)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for epoch in range(epochs):
        state, losses = None, []
        for start in range(0, data.shape[1] - 1, 64):
            end = min(start + 64, data.shape[1] - 1)
            logits, state = model(data[:, start:end], state)
            state = state.detach()
            loss = rr.cross_entropy(logits, data[:, start + 1 : end + 1])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        print(f"pass {epoch + 1}: loss {sum(losses) / len(losses):.4f} nats a character", flush=True)
    print(continued(model, characters, text[:1], 200))


if __name__ == "__main__":
    main()
