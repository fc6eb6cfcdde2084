"""Each operation beside PyTorch's own, in turns: forward and backward, with the same numbers."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

import riverrun.torch as rt


@dataclass(frozen=True)
class Row:
    """One operation: medians in seconds, and the 20th and 80th percentiles."""

    name: str
    ours: float
    ours_spread: tuple[float, float]
    theirs: float
    theirs_spread: tuple[float, float]

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.theirs / self.ours


def _spread(times):
    ordered = sorted(times)
    return ordered[len(ordered) // 5], ordered[-1 - len(ordered) // 5]


def _both_ways(function, leaves):
    """A call of the function and its backward pass."""

    def run():
        for leaf in leaves:
            leaf.grad = None
        y = function()
        y.backward(torch.ones_like(y))
        return y.detach()

    return run


def _scan_by_steps(a: Tensor, b: Tensor) -> Tensor:
    h = torch.zeros_like(b[:, 0])
    out = []
    for x, y in zip(a.unbind(1), b.unbind(1)):
        h = torch.addcmul(y, x, h)
        out.append(h)
    return torch.stack(out, 1)


def _delta_rule_by_steps(q, k, v, g, beta):
    s = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    out = []
    for t in range(q.shape[1]):
        s = s * torch.exp(g[:, t])[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - (s * k[:, t, :, :, None]).sum(2))
        s = s + k[:, t, :, :, None] * u[:, :, None]
        out.append((s * q[:, t, :, :, None]).sum(2) * q.shape[3] ** -0.5)
    return torch.stack(out, 1)


def problems(small: bool, device: torch.device, dtype: torch.dtype):
    """Names, and two functions of no argument: ours and PyTorch's."""

    def _leaves(*shapes):
        return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]

    gpu = device.type == "cuda"
    batch, steps, width = (2, 16, 32) if small else (64, 1024, 512) if gpu else (16, 256, 256)
    for name in ("GRU", "LSTM", "RNN"):
        theirs = getattr(torch.nn, name)(width, width, batch_first=True, device=device, dtype=dtype)
        ours = getattr(rt, name)(width, width, batch_first=True, device=device, dtype=dtype)
        ours.load_state_dict(theirs.state_dict())
        theirs.flatten_parameters()
        (x,) = _leaves((batch, steps, width))
        yield (
            f"nn.{name} {batch}x{steps}x{width}",
            _both_ways(lambda m=ours, x=x: m(x)[0], [x, *ours.parameters()]),
            _both_ways(lambda m=theirs, x=x: m(x)[0], [x, *theirs.parameters()]),
        )
    a, b = _leaves(*[(batch, steps, width)] * 2)
    with torch.no_grad():
        a.sigmoid_()
    yield (
        f"linear_scan {batch}x{steps}x{width}, against a loop",
        _both_ways(lambda: rt.linear_scan(a, b), [a, b]),
        _both_ways(lambda: _scan_by_steps(a, b), [a, b]),
    )
    heads, key = (2, 8) if small else (4, 64)
    shape = (2, steps, heads, key)
    q, k, v, g, beta = _leaves(shape, shape, shape, shape[:3], shape[:3])
    with torch.no_grad():
        k.div_(k.norm(dim=-1, keepdim=True))
        g.abs_().neg_()
        beta.sigmoid_()
    arguments = (q, k, v, g, beta)
    yield (
        f"chunk_gated_delta_rule {list(shape)}, against a loop",
        _both_ways(lambda: rt.chunk_gated_delta_rule(*arguments)[0], arguments),
        _both_ways(lambda: _delta_rule_by_steps(*arguments), arguments),
    )
    rows, dim = (64, 64) if small else (65536, 1024) if gpu else (4096, 1024)
    x, weight = _leaves((rows, dim), (dim,))
    yield (
        f"rms_norm {rows}x{dim}",
        _both_ways(lambda: rt.rms_norm(x, weight, 1e-6), [x, weight]),
        _both_ways(lambda: torch.nn.functional.rms_norm(x, (dim,), weight, 1e-6), [x, weight]),
    )
    rows, classes = (64, 100) if small else (8192, 50304) if gpu else (1024, 8192)
    (logits,) = _leaves((rows, classes))
    targets = torch.randint(0, classes, (rows,), device=device)
    yield (
        f"cross_entropy {rows}x{classes}",
        _both_ways(lambda: rt.cross_entropy(logits, targets), [logits]),
        _both_ways(lambda: torch.nn.functional.cross_entropy(logits, targets), [logits]),
    )


def _on_cpu(run) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


#: Calls between two looks at the clock of a GPU.
CALLS = 8


def _on_gpu(run) -> float:
    """Seconds of a call in a row of them: of the GPU, or of the host where it is slower."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    for _ in range(CALLS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / CALLS


def bench(seconds: float, small: bool, device: str = "cpu", dtype: str = "float32"):
    """Rows of all problems; each takes `seconds` and at least five measurements of both, in turns.

    Raises:
        AssertionError: the results differ: a wrong result is not timed.
    """
    torch.manual_seed(0)
    place, kind = torch.device(device), getattr(torch, dtype)
    seconds_of = _on_gpu if place.type == "cuda" else _on_cpu
    # cuDNN's products in float32 have TF32's 10 bits.
    limit = 0.05 if kind != torch.float32 else 1e-3 if place.type == "cpu" else 1e-2
    for name, ours, theirs in problems(small, place, kind):
        torch.testing.assert_close(ours(), theirs().to(ours().dtype), rtol=limit, atol=limit)
        times = [], []
        end = time.perf_counter() + seconds
        while len(times[0]) < 5 or time.perf_counter() < end:
            for run, of in zip((ours, theirs), times):
                of.append(seconds_of(run))
        medians = [statistics.median(of) for of in times]
        yield Row(name, medians[0], _spread(times[0]), medians[1], _spread(times[1]))
