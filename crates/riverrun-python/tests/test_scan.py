import pytest
import reference
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import riverrun.torch as rt
from riverrun.torch import _tensors

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def operations():
    yield "raw", 2, rt.linear_scan, reference.scan
    for candidate in ("identity", "tanh", "g"):
        yield (
            f"min-gru-{candidate}",
            2,
            lambda *x, c=candidate: rt.min_gru(*x, candidate=c),
            lambda *x, c=candidate: reference.min_gru(*x, candidate=c),
        )
        for normalized in (True, False):
            yield (
                f"min-lstm-{candidate}-{normalized}",
                3,
                lambda *x, c=candidate, n=normalized: rt.min_lstm(*x, candidate=c, normalized=n),
                lambda *x, c=candidate, n=normalized: reference.min_lstm(*x, candidate=c, normalized=n),
            )
    yield "rg-lru", 2, rt.rg_lru, reference.rg_lru


OPERATIONS = list(operations())


def inputs(name, count, shape, dtype=torch.float64):
    tensors = [torch.randn(shape, dtype=dtype) for _ in range(count)]
    if name == "raw":
        tensors[0] = torch.rand(shape, dtype=dtype)
    if name == "rg-lru":
        # Away from 0, where the slope of the square root is cut.
        tensors[0] = torch.rand(shape, dtype=dtype) + 0.1
    return tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, count, operation, formula", OPERATIONS, ids=[each[0] for each in OPERATIONS])
def test_results_and_gradients(name, count, operation, formula, dtype):
    batch, steps, dim = 3, 37, 19
    reset = torch.rand(batch, steps) < 0.1
    for marks in (None, reset):
        for reverse in (False, True):
            tensors = inputs(name, count, (batch, steps, dim)) + [torch.randn(batch, dim, dtype=torch.float64)]
            reference.compare(
                lambda *x: operation(*x, marks, reverse), lambda *x: formula(*x, marks, reverse), tensors, dtype, steps
            )


@pytest.mark.parametrize("name, count, operation, _", OPERATIONS, ids=[each[0] for each in OPERATIONS])
def test_gradcheck(name, count, operation, _):
    tensors = [x.requires_grad_() for x in inputs(name, count, (2, 5, 3))]
    h0 = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(operation, tensors)
    assert gradcheck(operation, [*tensors, h0])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_second_and_third_derivatives_of_the_raw_scan(reverse, resets, initial):
    a, b = (x.requires_grad_() for x in inputs("raw", 2, (2, 4, 2)))
    reset = torch.rand(2, 4) < 0.4 if resets else None
    h0 = [torch.randn(2, 2, dtype=torch.float64, requires_grad=True)] if initial else []

    def run(a, b, *h0):
        return rt.linear_scan(a, b, h0[0] if h0 else None, reset, reverse)

    assert gradgradcheck(run, (a, b, *h0))

    def slope(*x):
        return torch.autograd.grad(run(*x).sin().sum(), x, create_graph=True)

    assert gradgradcheck(slope, (a, b, *h0))


def test_a_gate_refuses_second_derivatives():
    z, n = (x.requires_grad_() for x in inputs("min-gru", 2, (1, 3, 2)))
    (d_z,) = torch.autograd.grad(rt.min_gru(z, n).sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        d_z.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gate, count", [("raw", 2), ("min-gru", 2), ("min-lstm", 3)])
def test_opcheck(gate, count, dtype):
    tensors = [x.to(dtype).requires_grad_() for x in inputs(gate, count, (2, 5, 3))]
    x0, x1, x2 = (*tensors, None)[:3]
    h0 = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    reset = torch.rand(2, 5) < 0.3
    scan = torch.ops.riverrun.scan.default
    opcheck(scan, (x0, x1, x2, None, None, False, gate))
    opcheck(scan, (x0, x1, x2, h0, reset, True, gate))
    opcheck(scan, (torch.cat(tensors, 2).detach().requires_grad_(), None, None, h0, None, False, gate))
    h = scan(x0, x1, x2, h0, reset, True, gate).detach()
    arguments = [None if x is None else x.detach() for x in (x0, x1, x2, h0)]
    opcheck(torch.ops.riverrun.scan_backward.default, (*arguments, reset, True, gate, h, torch.randn_like(h)))


def layouts(x):
    """The same numbers in other layouts."""
    batch, steps, dim = x.shape
    yield "time first", x.transpose(0, 1).contiguous().transpose(0, 1)
    yield "channels first", x.transpose(1, 2).contiguous().transpose(1, 2)
    yield "columns", torch.cat([x, x], 2)[:, :, dim:]
    wide = x.new_zeros(batch, steps, dim, 2)
    wide[..., 0] = x
    yield "every second number", wide[..., 0]
    yield "with an offset", torch.cat([x[:1], x])[1:]
    yield "negated in memory", torch.complex(x, -x).conj().imag if x.dtype == torch.float64 else x


def test_layouts_give_the_same_bits():
    a, b = inputs("raw", 2, (3, 8, 5))
    g = torch.randn(3, 8, 5, dtype=torch.float64)
    a.requires_grad_(), b.requires_grad_()
    expected = rt.linear_scan(a, b)
    d_a, d_b = torch.autograd.grad(expected, (a, b), g)
    for (name, x), (_, y), (_, g2) in zip(layouts(a.detach()), layouts(b.detach()), layouts(g)):
        assert torch.equal(x, a), name
        x, y = x.requires_grad_(), y.requires_grad_()
        h = rt.linear_scan(x, y)
        assert torch.equal(h, expected), name
        found = torch.autograd.grad(h, (x, y), g2)
        assert torch.equal(found[0], d_a) and torch.equal(found[1], d_b), name


def test_expanded_tensors():
    b = torch.randn(3, 8, 5, dtype=torch.float64)
    a = torch.rand(5, dtype=torch.float64, requires_grad=True)
    h = rt.linear_scan(a.expand(3, 8, 5), b)
    assert torch.equal(h, rt.linear_scan(a.expand(3, 8, 5).contiguous(), b))
    (d_a,) = torch.autograd.grad(h.sum(), a)
    assert d_a.shape == (5,)
    assert gradcheck(lambda a: rt.linear_scan(a.expand(3, 8, 5), b), (a,))


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (0, 0, 3)], ids=str)
def test_empty_tensors(shape):
    a, b = (torch.zeros(shape, requires_grad=True) for _ in range(2))
    h0 = torch.ones(shape[0], shape[2], requires_grad=True)
    h = rt.linear_scan(a, b, h0)
    assert h.shape == shape
    h.sum().backward()
    assert a.grad.shape == shape and not h0.grad.any()


def test_pieces_give_the_bits_of_the_whole():
    z, n = inputs("min-gru", 2, (2, 30, 7), torch.float32)
    whole = rt.min_gru(z, n)
    h0, pieces = None, []
    for start in range(0, 30, 7):
        piece = rt.min_gru(z[:, start : start + 7], n[:, start : start + 7], h0)
        h0 = piece[:, -1]
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces, 1), whole)


def test_columns_of_one_tensor_give_the_same_bits():
    for gate, count in (("min-gru", 2), ("min-lstm", 3), ("rg-lru", 2)):
        tensors = inputs(gate, count, (2, 9, 4), torch.float32)
        packed = torch.cat(tensors, 2).requires_grad_()
        operation = {"min-gru": rt.min_gru, "min-lstm": rt.min_lstm, "rg-lru": rt.rg_lru}[gate]
        leaves = [x.requires_grad_() for x in tensors]
        h, expected = rt.gated_scan(packed, gate), operation(*leaves)
        assert torch.equal(h, expected)
        h.sum().backward(), expected.sum().backward()
        assert torch.equal(packed.grad, torch.cat([x.grad for x in leaves], 2))


def test_what_is_before_a_reset_does_not_matter():
    a, b = inputs("raw", 2, (1, 4, 2))
    b[:, 1] = float("nan")
    reset = torch.tensor([[False, False, True, False]])
    h = rt.linear_scan(a, b, None, reset)
    assert torch.isfinite(h[:, 2:]).all()


def test_threads_do_not_change_the_bits(monkeypatch):
    a, b = inputs("raw", 2, (8, 64, 100), torch.float32)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(_tensors, "place", lambda _: threads)
        results.append(rt.linear_scan(a, b))
    assert all(torch.equal(results[0], other) for other in results[1:])
