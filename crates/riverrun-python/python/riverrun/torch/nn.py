"""GRU, LSTM and RNN with the constructors, states and state dicts of `torch.nn`'s.

They are subclasses of `torch.nn.RNNBase`, as PyTorch's are, but not of `torch.nn.GRU` and the others, which `torch.compile`
does not trace. State dicts go both ways.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from riverrun import _problem
from riverrun.torch._cell import run
from riverrun.torch._layers import MinGRU, MinLSTM, RGLRU

__all__ = ["GRU", "LSTM", "RNN", "MinGRU", "MinLSTM", "RGLRU"]


class _Recurrent(torch.nn.RNNBase):
    """The part that the three share."""

    _states = 1

    def __init__(self, mode, *args, **kwargs):
        # The order of `RNNBase`: the size of the projection is the eighth after the mode.
        proj_size = args[7] if len(args) > 7 else kwargs.get("proj_size", 0)
        if proj_size:
            raise ValueError(f"proj_size: expected 0, found {proj_size}: states are not projected here")
        super().__init__(mode, *args, **kwargs)

    def _cell(self):
        return self.mode.lower()

    def _weights(self, layer, direction):
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if self.bias else [])
        weights = [getattr(self, name + suffix) for name in names]
        return weights if self.bias else [*weights, None, None]

    def _states_of(self, hx, batch, batched):
        """The initial states, each `[layers · directions, B, H]`."""
        if hx is None:
            return [None] * self._states
        states = [hx] if self._states == 1 else list(hx)
        if len(states) != self._states:
            raise ValueError(f"hx: expected {self._states} states, found {len(states)}")
        count = self.num_layers * (2 if self.bidirectional else 1)
        shape = (count, batch, self.hidden_size) if batched else (count, self.hidden_size)
        for name, state in zip(("h_0", "c_0"), states):
            _problem.expect_shape(name, state, shape)
        return states if batched else [state.unsqueeze(1) for state in states]

    def _layers(self, x, states, reset, lengths):
        """All layers on `x`, `[B, T, I]`; returns the output and the last states."""
        back = _resets_backward(reset, lengths) if self.bidirectional else None
        directions = 2 if self.bidirectional else 1
        kind = self._cell()
        last = [[] for _ in states]
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout > 0:
                x = torch.nn.functional.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(directions):
                index = layer * directions + direction
                h0, c0 = ([None if state is None else state[index] for state in states] + [None])[:2]
                h, *ends = run(
                    kind,
                    x,
                    *self._weights(layer, direction),
                    h0,
                    c0,
                    back if direction else reset,
                    lengths,
                    direction == 1,
                )
                outputs.append(h)
                for kept, end in zip(last, ends):
                    kept.append(end)
            x = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        return x, [torch.stack(kept) for kept in last]

    def _of_state(self, states):
        return states[0] if self._states == 1 else tuple(states)

    def forward(self, input, hx=None, reset=None):
        """Runs all steps.

        Args:
            input: `[T, B, I]`, `[B, T, I]` with `batch_first`, `[T, I]` of one sequence, or a `PackedSequence`.
            hx: the initial state, `[layers * directions, B, H]`, `[layers * directions, H]` of one sequence; for the LSTM two
                of them; zero when `None`.
            reset: bool, `[T, B]`, `[B, T]` with `batch_first` (of a packed sequence too: in its order and to its longest
                sequence), `[T]` of one sequence. Where it is set a new piece begins: the state before the step counts as 0,
                and no gradient passes through it. In the backward direction the piece ends there.

        Returns:
            The output, `[T, B, directions * H]` and so on as the input, and the last state as `hx`.

        Raises:
            ValueError: shapes, dtypes or devices that do not fit.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, reset)
        if input.dim() not in (2, 3):
            raise ValueError(f"input: expected 2 or 3 dimensions, found shape {list(input.shape)}")
        if input.shape[-1] != self.input_size:
            raise ValueError(f"input: expected {self.input_size} features, found shape {list(input.shape)}")
        batched = input.dim() == 3
        swapped = batched and not self.batch_first
        x = input if batched else input.unsqueeze(0)
        x = x.transpose(0, 1) if swapped else x
        batch, steps = x.shape[:2]
        states = self._states_of(hx, batch, batched)
        if reset is not None:
            _problem.expect_shape("reset", reset, input.shape[:-1])
            reset = reset.transpose(0, 1) if swapped else reset.reshape(batch, steps)
        y, last = self._layers(x, states, reset, None)
        if not batched:
            return y.squeeze(0), self._of_state([state.squeeze(1) for state in last])
        # Contiguous, as PyTorch's output is: code that views it as rows runs.
        return (y.transpose(0, 1).contiguous() if swapped else y), self._of_state(last)

    def _forward_packed(self, packed, hx, reset):
        data, batch_sizes, order, inverse = packed
        if data.dim() != 2 or data.shape[1] != self.input_size:
            raise ValueError(f"input: expected packed data of {self.input_size} features, found shape {list(data.shape)}")
        # In the order of the data, by length.
        x, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), batch_first=True)
        batch, steps = x.shape[:2]
        states = self._states_of(hx, batch, True)
        if reset is not None:
            _problem.expect_shape("reset", reset, (batch, steps) if self.batch_first else (steps, batch))
            reset = reset if self.batch_first else reset.transpose(0, 1)
        if order is not None:
            states = [None if state is None else state.index_select(1, order) for state in states]
            reset = None if reset is None else reset.index_select(0, order)
        y, last = self._layers(x, states, reset, lengths.to(x.device))
        if inverse is not None:
            last = [state.index_select(1, inverse) for state in last]
        y = pack_padded_sequence(y, lengths, batch_first=True)
        return PackedSequence(y.data, batch_sizes, order, inverse), self._of_state(last)


def _resets_backward(reset, lengths):
    """The marks of the other direction: a piece begins there at its last step, one before the next mark."""
    if reset is None or reset.shape[1] == 0:
        return reset
    if lengths is not None:
        reset = reset & (torch.arange(reset.shape[1], device=reset.device) < lengths.unsqueeze(1))
    return torch.cat([reset[:, 1:], torch.zeros_like(reset[:, :1])], 1)


class GRU(_Recurrent):
    """`torch.nn.GRU` on riverrun's kernels: the same constructor and state dict, and `reset`.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as for `torch.nn.GRU`.

    Shapes are those of `forward`. The reset gate acts after the product, as in PyTorch. Under `torch.autocast` the recurrence
    runs in float32.
    """

    def __init__(self, *args, **kwargs):
        super().__init__("GRU", *args, **kwargs)


class LSTM(_Recurrent):
    """`torch.nn.LSTM` on riverrun's kernels: the same constructor and state dict, and `reset`. `proj_size` is refused.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as for `torch.nn.LSTM`.
    """

    _states = 2

    def __init__(self, *args, **kwargs):
        super().__init__("LSTM", *args, **kwargs)


class RNN(_Recurrent):
    """`torch.nn.RNN` on riverrun's kernels: the same constructor and state dict, and `reset`.

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, device, dtype: as for
            `torch.nn.RNN`.
    """

    def __init__(self, *args, **kwargs):
        if len(args) > 3:
            self.nonlinearity = args[3]
            args = args[:3] + args[4:]
        else:
            self.nonlinearity = kwargs.pop("nonlinearity", "tanh")
        if self.nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity: expected 'tanh' or 'relu', found {self.nonlinearity!r}")
        super().__init__(f"RNN_{self.nonlinearity.upper()}", *args, **kwargs)

    def _cell(self):
        return f"elman-{self.nonlinearity}"
