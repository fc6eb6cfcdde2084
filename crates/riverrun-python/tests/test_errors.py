"""Wrong shapes, types and devices: a ValueError that names both."""

import pytest
import torch

import riverrun.torch as rt

A = torch.rand(2, 3, 4)
W, U = torch.rand(15, 4), torch.rand(15, 5)

CASES = {
    "dimensions": (lambda: rt.linear_scan(A[0], A[0]), r"a: expected 3 dimensions \[B, T, D\], found shape \[3, 4\]"),
    "shape": (lambda: rt.linear_scan(A, A[:, :2]), r"b: expected shape \[2, 3, 4\], found \[2, 2, 4\]"),
    "third": (lambda: rt.min_lstm(A, A, A[:1]), r"n: expected shape \[2, 3, 4\], found \[1, 3, 4\]"),
    "dtype": (lambda: rt.linear_scan(A, A.double()), "b: expected dtype float32, found float64"),
    "integers": (lambda: rt.linear_scan(A.int(), A.int()), "a: expected one of the dtypes float32, .*, found int32"),
    "complex": (lambda: rt.linear_scan(A + 0j, A + 0j), "found complex64"),
    "h0": (lambda: rt.linear_scan(A, A, A[0]), r"h0: expected shape \[2, 4\], found \[3, 4\]"),
    "reset shape": (
        lambda: rt.linear_scan(A, A, None, torch.zeros(3, 2, dtype=torch.bool)),
        r"reset: expected shape \[2, 3\], found \[3, 2\]",
    ),
    "reset dtype": (lambda: rt.linear_scan(A, A, None, A[:, :, 0]), "reset: expected dtype bool, found float32"),
    "no channels": (lambda: rt.linear_scan(A[:, :, :0], A[:, :, :0]), "at least one channel"),
    "device": (
        lambda: rt.linear_scan(A, A.to("meta")),
        "b: expected a tensor on the CPU or an NVIDIA GPU, found one on meta",
    ),
    "layout": (lambda: rt.linear_scan(A, A.to_sparse()), "b: expected a dense tensor, found the layout torch.sparse_coo"),
    "candidate": (lambda: rt.min_gru(A, A, candidate="relu"), "'identity', 'tanh' or 'g', found 'relu'"),
    "gate": (lambda: rt.gated_scan(A, "no-gate"), "gate: expected one of raw, .*, found 'no-gate'"),
    "packed": (lambda: rt.gated_scan(A[:, :, :3], "min-gru"), r"x: expected a multiple of 2 channels, found shape \[2, 3, 3\]"),
    "weight_ih": (lambda: rt.gru(A, W[:, :3], U), r"weight_ih: expected shape \[15, 4\], found \[15, 3\]"),
    "weight_hh": (lambda: rt.gru(A, W, U[:14]), r"weight_hh: expected shape \[15, 5\], found \[14, 5\]"),
    "bias": (lambda: rt.gru(A, W, U, A[0, 0]), r"bias_ih: expected shape \[15\], found \[4\]"),
    "weight device": (lambda: rt.gru(A, W, U.to("meta")), "weight_hh: .* on meta"),
    "lengths shape": (
        lambda: rt.gru(A, W, U, lengths=torch.tensor([1])),
        r"lengths: expected shape \[2\], found \[1\]",
    ),
    "lengths dtype": (lambda: rt.gru(A, W, U, lengths=torch.tensor([1.0, 2.0])), "lengths: expected dtype int64, found float32"),
    "no units": (lambda: rt.gru(A, W[:0], U[:0, :0]), "at least one hidden unit"),
    "nonlinearity": (lambda: rt.rnn(A, W, U, nonlinearity="gelu"), "'tanh' or 'relu', found 'gelu'"),
    "norm device": (lambda: rt.rms_norm(A.to("meta"), A[0, 0]), "x: .* on meta"),
    "loss device": (lambda: rt.cross_entropy(A, A[:, :, 0].long().to("meta")), "targets: .* on meta"),
    "no classes": (lambda: rt.cross_entropy(A[:, :, :0], A[:, :, 0].long()), "at least one class"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused(name):
    call, text = CASES[name]
    with pytest.raises(ValueError, match=text):
        call()


def test_bytes_that_are_no_booleans():
    reset = torch.full((2, 3), 2, dtype=torch.uint8).view(torch.bool)
    with pytest.raises(ValueError, match="the byte 2, which is neither 0 nor 1"):
        rt.linear_scan(A, A, None, reset)


def test_a_refused_call_leaves_the_next_one_alone():
    for _ in range(3):
        with pytest.raises(ValueError):
            rt.linear_scan(A, A[:1])
        assert torch.isfinite(rt.linear_scan(A, A)).all()
