"""Writes recurrence.json: the recurrence and its gradients by PyTorch, in float64 on the CPU.

Every gate is written out with PyTorch's own functions and differentiated by its autograd. Run it without arguments,
in any directory; it needs nothing but PyTorch.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

BATCH, STEPS, DIM = 2, 5, 2


def g(u):
    return torch.where(u >= 0, u + 0.5, torch.sigmoid(u))


CANDIDATES = {"": lambda u: u, "-tanh": torch.tanh, "-g": g}


def raw(a, b):
    return a, b


def sigmoid(k_a, b):
    return torch.sigmoid(k_a), b


def min_gru(act):
    def gate(k_z, k_h):
        z = torch.sigmoid(k_z)
        return 1 - z, z * act(k_h)

    return gate


def min_lstm(act):
    def gate(k_f, k_i, k_h):
        f, i = torch.sigmoid(k_f), torch.sigmoid(k_i)
        return f / (f + i), i / (f + i) * act(k_h)

    return gate


def min_lstm_in_logarithms(act):
    """The same function where f + i underflows."""

    def gate(k_f, k_i, k_h):
        d = F.logsigmoid(k_i) - F.logsigmoid(k_f)
        return torch.sigmoid(-d), torch.sigmoid(d) * act(k_h)

    return gate


def min_lstm_raw(act):
    def gate(k_f, k_i, k_h):
        return torch.sigmoid(k_f), torch.sigmoid(k_i) * act(k_h)

    return gate


class BoundedSqrt(torch.autograd.Function):
    """The square root, with a slope of at most 1000."""

    @staticmethod
    def forward(ctx, x):
        root = torch.sqrt(x)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, grad):
        (root,) = ctx.saved_tensors
        return grad * torch.clamp(0.5 / root, max=1000.0)


def rg_lru(s, u):
    return torch.exp(-s), BoundedSqrt.apply(-torch.expm1(-2 * s)) * u


def recurrence(gate, inputs, h0, reset, reverse):
    a, b = gate(*inputs)
    h, states = h0, [None] * STEPS
    for t in reversed(range(STEPS)) if reverse else range(STEPS):
        if reset is not None:
            h = torch.where(reset[:, t, None], torch.zeros_like(h), h)
        h = a[:, t] * h + b[:, t]
        states[t] = h
    return torch.stack(states, dim=1), h


def random(bound, *shape):
    """Multiples of 1/64, which are short to write and exact in every storage type."""
    x = torch.randint(-64 * bound, 64 * bound + 1, shape, dtype=torch.float64) / 64
    # Away from 0, where g has two slopes.
    return torch.where(x == 0, torch.full_like(x, 0.25), x)


def listed(x):
    return None if x is None else x.detach().flatten().tolist()


def case(name, gate, inputs, options):
    with_h0, with_reset, reverse, with_d_h_last = options
    inputs = [x.clone().requires_grad_() for x in inputs]
    h0 = random(1, BATCH, DIM) if with_h0 else torch.zeros(BATCH, DIM, dtype=torch.float64)
    h0.requires_grad_()
    reset = torch.rand(BATCH, STEPS) < 0.3 if with_reset else None
    d_h = random(1, BATCH, STEPS, DIM)
    d_h_last = random(1, BATCH, DIM) if with_d_h_last else None

    h, h_last = recurrence(gate, inputs, h0, reset, reverse)
    loss = (h * d_h).sum()
    if d_h_last is not None:
        loss = loss + (h_last * d_h_last).sum()
    d_h0, *d_inputs = torch.autograd.grad(loss, [h0, *inputs], materialize_grads=True)
    return {
        "gate": name,
        "reverse": reverse,
        "inputs": [listed(x) for x in inputs],
        "h0": listed(h0) if with_h0 else None,
        "reset": listed(reset),
        "d_h": listed(d_h),
        "d_h_last": listed(d_h_last),
        "h": listed(h),
        "h_last": listed(h_last),
        "d_inputs": [listed(x) for x in d_inputs],
        "d_h0": listed(d_h0),
    }


def main():
    torch.manual_seed(0)
    gates = {"raw": (raw, 2), "sigmoid": (sigmoid, 2)}
    for suffix, act in CANDIDATES.items():
        gates["min-gru" + suffix] = (min_gru(act), 2)
        gates["min-lstm" + suffix] = (min_lstm(act), 3)
        gates["min-lstm-raw" + suffix] = (min_lstm_raw(act), 3)

    # h0, reset, reverse, d_h_last.
    options = [
        (False, False, False, False),
        (True, False, False, True),
        (True, True, False, False),
        (True, True, True, True),
    ]
    cases = []
    for name, (gate, count) in gates.items():
        for option in options:
            bounds = [1 if name == "raw" else 6] * (count - 1) + [2]
            inputs = [random(bound, BATCH, STEPS, DIM) for bound in bounds]
            cases.append(case(name, gate, inputs, option))
    # Both gates of minLSTM far below where they can be told from 0.
    for suffix, act in CANDIDATES.items():
        far = [random(2, BATCH, STEPS, DIM) - offset for offset in (5000, 5001)]
        inputs = [*far, random(2, BATCH, STEPS, DIM)]
        cases.append(case("min-lstm" + suffix, min_lstm_in_logarithms(act), inputs, options[1]))

    # Rates of decay, among them a 0 in every seventh place.
    for option in options:
        s = random(6, BATCH, STEPS, DIM).abs()
        s.view(-1)[::7] = 0
        inputs = [s, random(2, BATCH, STEPS, DIM)]
        cases.append(case("rg-lru", rg_lru, inputs, option))

    golden = {"made_by": f"PyTorch {torch.__version__}", "batch": BATCH, "steps": STEPS, "dim": DIM}
    path = pathlib.Path(__file__).with_name("recurrence.json")
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(json.dumps(golden)[:-1] + ', "cases": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
