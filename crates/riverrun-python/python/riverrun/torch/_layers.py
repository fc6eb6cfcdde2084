"""Layers on linear recurrences: a projection of all gates, then one scan over time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from riverrun import _problem
from riverrun.torch._scan import gated_scan, rg_lru


def _last(h, h0, reverse):
    """The state after the last step; without steps, the initial one."""
    if h.shape[1] > 0:
        return h[:, 0 if reverse else -1]
    return h.new_zeros(h.shape[0], h.shape[2]) if h0 is None else h0


class _Gated(nn.Module):
    """A projection and a scan. Shapes: see `forward`."""

    def __init__(self, gate, input_size, hidden_size, bias, reverse, device, dtype):
        super().__init__()
        self.gate = gate
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.reverse = reverse
        width = len(_problem.GATES[gate]) * hidden_size
        self.projection = nn.Linear(input_size, width, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Tensor, h0: Tensor | None = None, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Runs all steps.

        Args:
            x: `[B, T, I]`.
            h0: `[B, H]`, zero when `None`.
            reset: `[B, T]`, bool; where it is set, the state before the step counts as 0, and no gradient passes through it.

        Returns:
            The state after every step, `[B, T, H]`, and the last one, `[B, H]`.
        """
        _problem.expect_dims("x", x, 3, "[B, T, I]")
        _problem.expect_shape("x", x, (*x.shape[:2], self.input_size))
        h = gated_scan(self.projection(x), self.gate, h0, reset, self.reverse)
        return h, _last(h, h0, self.reverse)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, gate={self.gate!r}, reverse={self.reverse}"


def _spread(bias, memory):
    """Biases with which the channels remember from 1 to `memory` steps for a zero input, evenly on a logarithmic scale."""
    count = bias.shape[0]
    parts = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    with torch.no_grad():
        bias.copy_(-parts * math.log(memory))


class MinGRU(_Gated):
    """minGRU: `z = σ(W_z x)`, `h_t = (1 - z) * h_{t-1} + z * act(W_n x)`.

    Args:
        input_size, hidden_size: features of the input and of the state.
        bias: whether the projection has one.
        candidate: `act`, see `riverrun.torch.min_gru`.
        memory: at first the channels remember from 1 to this many steps; 1 leaves the biases as drawn.
        reverse: whether time runs from the last step to the first.

    `projection.weight` is `[2H, I]`: the rows of `W_z`, then those of `W_n`.

    Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.1.
    """

    def __init__(
        self, input_size, hidden_size, bias=True, candidate="identity", memory=1, reverse=False, device=None, dtype=None
    ):
        gate = _problem.candidate_gate("min-gru", candidate)
        super().__init__(gate, input_size, hidden_size, bias, reverse, device, dtype)
        if memory > 1:
            if not bias:
                raise ValueError("memory: expected 1 for a layer without a bias, which carries it")
            _spread(self.projection.bias[:hidden_size], memory)


class MinLSTM(_Gated):
    """minLSTM: `f = σ(W_f x)`, `i = σ(W_i x)`, `h_t = f' * h_{t-1} + i' * act(W_n x)`.

    Args:
        normalized: whether `f' = f / (f + i)` and `i' = i / (f + i)`; else they are `f` and `i`.

    The others are those of `MinGRU`. `projection.weight` is `[3H, I]`: the rows of `W_f`, `W_i` and `W_n`.

    Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.2.
    """

    def __init__(
        self,
        input_size,
        hidden_size,
        bias=True,
        candidate="identity",
        normalized=True,
        memory=1,
        reverse=False,
        device=None,
        dtype=None,
    ):
        gate = _problem.candidate_gate("min-lstm" if normalized else "min-lstm-raw", candidate)
        super().__init__(gate, input_size, hidden_size, bias, reverse, device, dtype)
        if memory > 1:
            if not bias:
                raise ValueError("memory: expected 1 for a layer without a bias, which carries it")
            _spread(self.projection.bias[hidden_size : 2 * hidden_size], memory)


class RGLRU(nn.Module):
    """RG-LRU, the recurrence of Griffin: `r = σ(W_r x)`, `i = σ(W_i x)`, `a = e^(-8 softplus(Λ) r)`,
    `h_t = a * h_{t-1} + sqrt(1 - a²) * (i * x)`.

    Args:
        input_size, hidden_size: features of the input and of the state; where they differ, `input`, a linear layer, comes first.
        bias: whether the linear layers have biases.
        min_decay, max_decay: `a` at `r = 1` is at first spread evenly between them.
        reverse: whether time runs from the last step to the first.

    `gates.weight` is `[2H, H]`: the rows of `W_r`, then those of `W_i`. `lambda_` is `Λ`, `[H]`.

    Source: De et al., *Griffin* (2024), section 2.4.
    """

    #: The paper's c.
    SHARPNESS = 8.0

    def __init__(
        self,
        input_size,
        hidden_size,
        bias=True,
        min_decay=0.9,
        max_decay=0.999,
        reverse=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if not 0 < min_decay <= max_decay < 1:
            raise ValueError(f"expected 0 < min_decay <= max_decay < 1, found {min_decay} and {max_decay}")
        place = {"device": device, "dtype": dtype}
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.reverse = reverse
        self.input = None if input_size == hidden_size else nn.Linear(input_size, hidden_size, bias=bias, **place)
        self.gates = nn.Linear(hidden_size, 2 * hidden_size, bias=bias, **place)
        parts = (torch.arange(hidden_size, dtype=torch.float64) + 0.5) / hidden_size
        rate = -torch.log(min_decay + parts * (max_decay - min_decay))
        self.lambda_ = nn.Parameter(torch.empty(hidden_size, **place))
        with torch.no_grad():
            self.lambda_.copy_(torch.log(torch.expm1(rate / self.SHARPNESS)))

    def forward(self, x: Tensor, h0: Tensor | None = None, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Runs all steps; arguments and results are those of `MinGRU`."""
        _problem.expect_dims("x", x, 3, "[B, T, I]")
        _problem.expect_shape("x", x, (*x.shape[:2], self.input_size))
        if self.input is not None:
            x = self.input(x)
        r, i = torch.sigmoid(self.gates(x)).chunk(2, 2)
        s = self.SHARPNESS * nn.functional.softplus(self.lambda_) * r
        h = rg_lru(s, i * x, h0, reset, self.reverse)
        return h, _last(h, h0, self.reverse)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, reverse={self.reverse}"
