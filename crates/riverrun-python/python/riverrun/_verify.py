"""Checks of every operation on this machine, on the CPU or on a GPU.

Results are compared with the formulas in float64; gradients in float64 with differences of the formulas, and in narrower types
with those gradients. Results are filled with whatever memory held before, and two runs must have equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import numpy as np

from riverrun import _arrays, _problem, _reference
from riverrun import _kernels as kernels


class Place:
    """The kernels on NumPy arrays: on the CPU, or on a GPU by copies, where float64 stays on the CPU."""

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        def on_cpu(*arguments):
            return getattr(kernels, name)(_arrays, *arguments)

        if self._device == "cpu":
            return on_cpu
        import torch

        from riverrun.torch import _cuda, _tensors

        module = _cuda if hasattr(_cuda, name) else kernels

        def there(x):
            if isinstance(x, np.ndarray):
                return torch.from_numpy(np.array(x, order="C")).to(self._device)
            return [there(each) for each in x] if isinstance(x, list) else x

        def back(x):
            if isinstance(x, torch.Tensor):
                return x.cpu().numpy()
            return type(x)(back(each) for each in x) if isinstance(x, (list, tuple)) else x

        def on_gpu(*arguments):
            if name.startswith("scan") and len(arguments[1]) > 1 and arguments[0] != "raw":
                # The kernels take the inputs of a gate side by side there.
                gate, inputs, *rest = arguments
                results = on_gpu(gate, [np.concatenate(inputs, 2)], *rest)
                if name == "scan":
                    return results
                (d_inputs,), d_h0 = results
                return np.split(d_inputs, len(inputs), 2), d_h0
            arrays = [x for each in arguments for x in (each if isinstance(each, list) else [each])]
            if any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in arrays):
                return on_cpu(*arguments)
            return back(getattr(module, name)(_tensors, *(there(x) for x in arguments)))

        return on_gpu

#: The step of the differences. With a second one of half its length, the error is of the fourth order.
STEP = 1e-3


@dataclass(frozen=True)
class Row:
    """One check."""

    operation: str
    dtype: str
    #: `results`, `gradients` or `bits`.
    what: str
    #: The largest error, over what is allowed: at most 1 where it passes.
    error: float
    passed: bool


@dataclass(frozen=True)
class Case:
    """An operation with its data. Functions take the tensors in order."""

    name: str
    tensors: list
    run: Callable
    back: Callable
    formula: Callable
    #: The terms of the longest sum.
    terms: int


def _scans(rng, place):
    batch, steps, dim = 3, 70, 37
    reset = rng.random((batch, steps)) < 0.05
    for index, gate in enumerate(_problem.GATES):
        count = len(_problem.GATES[gate])
        tensors = [rng.standard_normal((batch, steps, dim)) for _ in range(count)]
        if gate in ("raw", "rg-lru"):
            tensors[0] = rng.random((batch, steps, dim)) + (0.1 if gate == "rg-lru" else 0)
        # The activation `g` has a corner at 0.
        tensors[-1] += np.where(tensors[-1] < 0, -0.1, 0.1)
        tensors.append(rng.standard_normal((batch, dim)))
        reverse = index % 2 == 1

        def run(*x, gate=gate, reverse=reverse):
            return [place.scan(gate, list(x[:-1]), x[-1], reset, reverse)]

        def back(x, results, d, gate=gate, reverse=reverse):
            *inputs, h0 = x
            gradients, d_h0 = place.scan_backward(gate, inputs, h0, reset, reverse, results[0], d[0])
            return [*gradients, d_h0]

        def formula(*x, gate=gate, reverse=reverse):
            return [_reference.scan(*_reference.coefficients(gate, x[:-1]), x[-1], reset, reverse)]

        yield Case(gate, tensors, run, back, formula, steps)


def _cells(rng, place):
    batch, steps, width, hidden = 5, 12, 9, 19
    reset, lengths = rng.random((batch, steps)) < 0.1, np.array([12, 5, 0, 1, 11])
    for index, (kind, (gates, _)) in enumerate(_problem.CELLS.items()):
        rows = gates * hidden
        shapes = [(batch, steps, width), (rows, width), (rows, hidden), (rows,), (rows,), (batch, hidden)]
        shapes += [(batch, hidden)] if kind == "lstm" else []
        tensors = [rng.standard_normal(shape) * (0.3 if len(shape) == 2 else 1) for shape in shapes]
        if kind == "elman-relu":
            # Away from the corner at 0.
            tensors[3] = np.where(np.arange(rows) % 2 == 0, 6.0, -6.0)
            tensors[0], tensors[1], tensors[2] = tensors[0] * 0.3, tensors[1] * 0.3, tensors[2] * 0.1
        reverse = index % 2 == 1

        def both(x):
            return [*x, None] if len(x) == 6 else list(x)

        def run(*x, kind=kind, reverse=reverse):
            outputs = place.cell(kind, reverse, False, *both(x), reset, lengths)
            return [y for y in outputs[:3] if y is not None]

        def back(x, results, d, kind=kind, reverse=reverse):
            h, _, _, saved = place.cell(kind, reverse, True, *both(x), reset, lengths)
            d_c = d[2] if kind == "lstm" else None
            wanted = [True] * 7
            gradients = place.cell_backward(
                kind, reverse, wanted, *both(x), reset, lengths, h, saved, d[0], d[1], d_c
            )
            return gradients[: len(x)]

        def formula(*x, kind=kind, reverse=reverse):
            return _reference.cell(kind, *both(x), reset, lengths, reverse)

        yield Case(kind, tensors, run, back, formula, batch * steps * hidden)


def _states(rng, place):
    batch, steps, heads, values, key, value = 2, 50, 2, 4, 16, 24
    for name, row, erase in (("gated-delta-rule", False, True), ("kda", True, True), ("gla", True, False)):
        k = rng.standard_normal((batch, steps, heads, key))
        tensors = [
            rng.standard_normal((batch, steps, heads, key)),
            k / np.linalg.norm(k, axis=-1, keepdims=True),
            rng.standard_normal((batch, steps, values, value)),
            -rng.random((batch, steps, values, *([key] if row else []))) - 0.01,
            *([rng.random((batch, steps, values))] if erase else []),
            rng.standard_normal((batch, values, key, value)),
        ]

        def arguments(x, erase=erase):
            q, k, v, g, *beta, initial = x
            # States are at least float32.
            initial = initial.astype(_problem.ARITHMETIC[q.dtype.name])
            return q, k, v, g, beta[0] if erase else None, initial

        def run(*x, arguments=arguments):
            return list(place.matrix_state(*arguments(x), None, None))

        def back(x, results, d, arguments=arguments):
            d_last = d[1].astype(results[1].dtype)
            gradients = place.matrix_state_backward(*arguments(x), None, None, d[0], d_last)
            return [y for y in gradients if y is not None]

        def formula(*x, arguments=arguments):
            return _reference.matrix_state(*arguments(x))

        yield Case(name, tensors, run, back, formula, steps * key)


def _rows(rng, place):
    x, weight = rng.standard_normal((150, 67)), rng.standard_normal(67)
    yield Case(
        "rms-norm",
        [x, weight],
        lambda x, weight: [place.rms_norm(x, weight, 1e-6)],
        lambda x, _, d: list(place.rms_norm_backward(*x, 1e-6, d[0])),
        lambda x, weight: [_reference.rms_norm(x, weight, 1e-6)],
        150,
    )
    logits, targets = rng.standard_normal((40, 300)) * 3, rng.integers(0, 300, 40)
    targets[7] = -1

    def back(x, _, d):
        _, lse, weight = place.cross_entropy(x[0], targets)
        scale = np.asarray(float(d[0]) * float(weight), dtype=lse.dtype)
        return [place.cross_entropy_backward(x[0], targets, lse, scale)]

    yield Case(
        "cross-entropy",
        [logits],
        lambda x: [place.cross_entropy(x, targets)[0]],
        back,
        lambda x: [np.asarray(_reference.cross_entropy(x, targets))],
        300,
    )


def cases(seed, place):
    """Every operation, with data of this seed."""
    rng = np.random.default_rng(seed)
    for family in (_scans, _cells, _states, _rows):
        yield from family(rng, place)


def _excess(found, expected, allowed):
    """The largest error over what is allowed; infinity for what is not finite."""
    if not np.isfinite(found.astype(np.float64)).all():
        return float("inf")
    return float(np.max(np.abs(found.astype(np.float64) - expected), initial=0) / max(allowed, 1e-300))


def _largest(x):
    return float(np.max(np.abs(x), initial=0))


def _results(case, tensors, dtype):
    """Twice the error of the formulas in the dtype itself, and the roundings of a sum, as its root."""
    found = case.run(*tensors)
    expected = case.formula(*(x.astype(np.float64) for x in tensors))
    naive = case.formula(*tensors)
    eps = np.finfo(dtype).eps
    worst = 0.0
    for f, n, e in zip(found, naive, expected):
        allowed = 2 * _largest(n.astype(np.float64) - e) + eps * case.terms**0.5 * _largest(e)
        worst = max(worst, _excess(f, e, allowed))
    return found, worst


def _slopes(case, rng):
    """Float64 gradients against differences of the formulas, one random direction a tensor."""
    results = case.run(*case.tensors)
    cotangents = [rng.standard_normal(y.shape) for y in results]
    gradients = case.back(case.tensors, results, cotangents)
    size = sum(float(np.sum(np.abs(c * y))) for c, y in zip(cotangents, results))
    worst = 0.0
    for index, gradient in enumerate(gradients):
        direction = rng.standard_normal(gradient.shape)
        direction /= max(np.linalg.norm(direction), 1e-300)

        def loss(at):
            moved = list(case.tensors)
            moved[index] = moved[index] + at * direction
            return sum(float(np.sum(c * y)) for c, y in zip(cotangents, case.formula(*moved)))

        def slope(step):
            return (loss(step) - loss(-step)) / (2 * step)

        expected = (4 * slope(STEP / 2) - slope(STEP)) / 3
        found = np.asarray(np.sum(gradient * direction))
        # Rounding of the losses gives 1e-13 of their size, the fourth power of the step 1e-12 times the fifth derivative.
        worst = max(worst, _excess(found, expected, 1e-9 * size))
    return cotangents, worst


def _narrow_slopes(case, tensors, dtype, cotangents):
    """Gradients in a narrow dtype against those in float64 of the same data."""
    wide = [x.astype(np.float64) for x in tensors]
    d = [c.astype(dtype) for c in cotangents]
    found = case.back(tensors, case.run(*tensors), d)
    expected = case.back(wide, case.run(*wide), [c.astype(np.float64) for c in d])
    # Stored states are rounded, in 16 bits about 16 times a step; summands are as large as the largest gradient.
    eps = np.finfo(dtype).eps
    summands = max(_largest(e) for e in expected)
    return max(_excess(f, e, 4 * eps * case.terms**0.5 * summands) for f, e in zip(found, expected))


def _equal_bits(case, tensors, cotangents):
    first, second = (
        [*(results := case.run(*tensors)), *case.back(tensors, results, cotangents)] for _ in range(2)
    )
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second))


def verify(seed=0, device="cpu"):
    """See `riverrun.verify`."""
    rows = []
    for case in cases(seed, Place(device)):
        rng = np.random.default_rng(seed + 1)
        _, error = _results(case, case.tensors, np.float64)
        rows.append(Row(case.name, "float64", "results", error, error <= 1))
        cotangents, error = _slopes(case, rng)
        rows.append(Row(case.name, "float64", "gradients", error, error <= 1))
        for dtype in (np.float32, np.float16):
            name = np.dtype(dtype).name
            tensors = [x.astype(dtype) for x in case.tensors]
            _, error = _results(case, tensors, dtype)
            rows.append(Row(case.name, name, "results", error, error <= 1))
            error = _narrow_slopes(case, tensors, dtype, cotangents)
            rows.append(Row(case.name, name, "gradients", error, error <= 1))
            equal = _equal_bits(case, tensors, [c.astype(dtype) for c in cotangents])
            rows.append(Row(case.name, name, "bits", 0.0 if equal else float("inf"), equal))
    return rows
