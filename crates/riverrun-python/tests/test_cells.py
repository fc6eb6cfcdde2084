import pytest
import reference
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

import riverrun.torch as rt
from riverrun.torch import _tensors

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
GATES = {"gru": 3, "lstm": 4, "elman-tanh": 1, "elman-relu": 1}


def tensors(kind, batch=3, steps=5, width=4, hidden=6, dtype=torch.float64):
    """`x, w, u, b_ih, b_hh, h0` and, for the LSTM, `c0`."""
    rows = GATES[kind] * hidden
    shapes = [(batch, steps, width), (rows, width), (rows, hidden), (rows,), (rows,), (batch, hidden)]
    shapes += [(batch, hidden)] if kind == "lstm" else []
    # Recurrent weights that keep states and gradients of the size of one.
    return [torch.randn(shape, dtype=dtype) * (0.5 if len(shape) == 2 else 1.0) for shape in shapes]


def operation(kind, reset=None, lengths=None, reverse=False):
    def run(x, w, u, b_ih, b_hh, h0, c0=None):
        if kind == "lstm":
            h, (h_last, c_last) = rt.lstm(x, w, u, b_ih, b_hh, (h0, c0), reset, lengths, reverse)
            return h, h_last, c_last
        if kind == "gru":
            return rt.gru(x, w, u, b_ih, b_hh, h0, reset, lengths, reverse)
        return rt.rnn(x, w, u, b_ih, b_hh, h0, reset, lengths, reverse, kind.removeprefix("elman-"))

    return run


def formula(kind, reset=None, lengths=None, reverse=False):
    def run(x, w, u, b_ih, b_hh, h0, c0=None):
        return reference.cell(kind, x, w, u, b_ih, b_hh, h0, c0, reset, lengths, reverse)

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", GATES)
def test_results_and_gradients(kind, reverse, dtype):
    batch, steps = 5, 9
    reset = torch.rand(batch, steps) < 0.2
    lengths = torch.tensor([9, 4, 0, 7, 1])
    for options in ((None, None), (reset, None), (reset, lengths)):
        arguments = (*options, reverse)
        reference.compare(
            operation(kind, *arguments),
            formula(kind, *arguments),
            tensors(kind, batch, steps, 7, 11),
            dtype,
            batch * steps * 11,
        )


@pytest.mark.parametrize("batch, steps, width, hidden", [(1, 40, 3, 70), (17, 12, 33, 16), (2, 1, 1, 8)])
@pytest.mark.parametrize("kind", GATES)
def test_sizes(kind, batch, steps, width, hidden):
    values = [x * (0.3 if x.dim() == 2 else 1.0) for x in tensors(kind, batch, steps, width, hidden)]
    reference.compare(operation(kind), formula(kind), values, torch.float32, batch * steps * hidden)


@pytest.mark.parametrize("kind", ["gru", "lstm", "elman-tanh"])
def test_gradcheck(kind):
    reset, lengths = torch.rand(3, 5) < 0.2, torch.tensor([5, 2, 3])
    leaves = [x.requires_grad_() for x in tensors(kind)]
    assert gradcheck(operation(kind), leaves)
    assert gradcheck(operation(kind), [x.requires_grad_() for x in tensors(kind, 2, 2, 1, 1)])
    assert gradcheck(operation(kind, reset, lengths, True), leaves)


@pytest.mark.parametrize("kind", GATES)
def test_absent_tensors_are_zero(kind):
    x, w, u, b_ih, b_hh, *states = tensors(kind)
    zeros = [torch.zeros_like(x) for x in (b_ih, b_hh, *states)]
    given = operation(kind)(x, w, u, *zeros)
    options = {"nonlinearity": kind.removeprefix("elman-")} if kind.startswith("elman") else {}
    absent = getattr(rt, "rnn" if options else kind)(x, w, u, **options)
    assert torch.equal(absent[0], given[0])


@pytest.mark.parametrize("kind", GATES)
def test_opcheck(kind):
    x, w, u, b_ih, b_hh, h0, *c0 = (x.requires_grad_() for x in tensors(kind))
    c0 = c0[0] if c0 else None
    reset, lengths = torch.rand(3, 5) < 0.2, torch.tensor([5, 2, 3])
    cell = torch.ops.riverrun.cell.default
    opcheck(cell, (x, w, u, b_ih, b_hh, h0, c0, reset, lengths, kind, True, True))
    opcheck(cell, (x, w, u, None, None, None, None, None, None, kind, False, True))
    detached = [None if x is None else x.detach() for x in (x, w, u, b_ih, b_hh, h0, c0)]
    opcheck(cell, (*detached, None, None, kind, False, False))
    h, h_last, c_last, saved = cell(*detached, reset, lengths, kind, True, True)
    gradients = [torch.randn_like(x) for x in (h, h_last)] + [torch.randn_like(c_last) if c0 is not None else None]
    wanted = [True, False, True, True, False, True, c0 is not None]
    arguments = (*detached, reset, lengths, kind, True, h, saved, *gradients, wanted)
    opcheck(torch.ops.riverrun.cell_backward.default, arguments)


@pytest.mark.parametrize("kind", GATES)
def test_only_the_gradients_that_are_asked_for(kind):
    values = tensors(kind)
    all_leaves = [x.clone().requires_grad_() for x in values]
    expected = torch.autograd.grad(operation(kind)(*all_leaves)[0].sum(), all_leaves)
    for index in range(len(values)):
        leaves = [x.clone() for x in values]
        leaves[index].requires_grad_()
        (found,) = torch.autograd.grad(operation(kind)(*leaves)[0].sum(), leaves[index])
        assert torch.equal(found, expected[index]), index


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)], ids=str)
@pytest.mark.parametrize("kind", GATES)
def test_empty_sequences(kind, shape):
    leaves = [x.requires_grad_() for x in tensors(kind, *shape)]
    h, h_last, *_ = operation(kind)(*leaves)
    assert h.shape == (*shape, 6)
    assert torch.equal(h_last, leaves[5])
    (h.sum() + h_last.sum()).backward()
    assert torch.equal(leaves[5].grad, torch.ones(shape[0], 6, dtype=torch.float64))
    assert not leaves[1].grad.any()


def test_pieces_and_threads_give_the_bits_of_the_whole(monkeypatch):
    x, w, u, b_ih, b_hh, _ = tensors("gru", 4, 20, 8, 32, torch.float32)
    whole, last = rt.gru(x, w, u, b_ih, b_hh)
    state, pieces = None, []
    for start in range(0, 20, 6):
        h, state = rt.gru(x[:, start : start + 6], w, u, b_ih, b_hh, state)
        pieces.append(h)
    assert torch.equal(torch.cat(pieces, 1), whole) and torch.equal(state, last)
    monkeypatch.setattr(_tensors, "place", lambda _: 1)
    assert torch.equal(rt.gru(x, w, u, b_ih, b_hh)[0], whole)


def test_layouts_give_the_same_bits():
    x, w, u, b_ih, b_hh, h0 = tensors("gru")
    expected = rt.gru(x, w, u, b_ih, b_hh, h0)[0]
    swapped = [t.T.contiguous().T if t.dim() == 2 else t for t in (w, u, b_ih, b_hh, h0)]
    assert torch.equal(rt.gru(x.transpose(0, 1).contiguous().transpose(0, 1), *swapped)[0], expected)


def test_wrong_lengths_are_refused():
    x, w, u, *_ = tensors("gru")
    for lengths in ([6, 1, 1], [-1, 1, 1]):
        with pytest.raises(ValueError, match="lengths from 0 to 5"):
            rt.gru(x, w, u, lengths=torch.tensor(lengths))
