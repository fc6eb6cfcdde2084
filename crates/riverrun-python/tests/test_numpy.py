"""The operations on NumPy arrays and what NumPy can view."""

import array
from dataclasses import replace

import numpy as np
import pytest
import torch

import riverrun
import riverrun.torch as rt
from riverrun import _verify


def data(*shape, dtype=np.float32):
    return torch.randn(*shape, dtype=torch.float64).numpy().astype(dtype)


def test_the_bits_are_those_of_tensors():
    a, b, h0 = data(2, 7, 5), data(2, 7, 5), data(2, 5)
    reset = np.random.default_rng(0).random((2, 7)) < 0.3
    t = torch.from_numpy
    for reverse in (False, True):
        pairs = [
            (riverrun.linear_scan(a, b, h0, reset, reverse), rt.linear_scan(t(a), t(b), t(h0), t(reset), reverse)),
            (riverrun.min_gru(a, b, h0, reset, reverse, "g"), rt.min_gru(t(a), t(b), t(h0), t(reset), reverse, "g")),
            (
                riverrun.min_lstm(a, b, b, h0, reset, reverse, "tanh", False),
                rt.min_lstm(t(a), t(b), t(b), t(h0), t(reset), reverse, "tanh", False),
            ),
            (riverrun.rg_lru(abs(a), b, h0), rt.rg_lru(t(abs(a)), t(b), t(h0))),
        ]
        for found, expected in pairs:
            assert isinstance(found, np.ndarray) and np.array_equal(found, expected.numpy())
    w, u, bias, lengths = data(12, 5), data(12, 3), data(12), [7, 4]
    h0, c0 = data(2, 3), data(2, 3)
    tensors = [t(x) for x in (a, w, u, bias, bias)]
    h, (h_last, c_last) = riverrun.lstm(a, w, u, bias, bias, (h0, c0), reset, lengths, True)
    expected = rt.lstm(*tensors, (t(h0), t(c0)), t(reset), torch.tensor(lengths), True)
    assert np.array_equal(h, expected[0].numpy()) and np.array_equal(c_last, expected[1][1].numpy())
    h, last = riverrun.gru(a, w[:9], u[:9], bias[:9], bias[:9], h0)
    assert np.array_equal(h, rt.gru(t(a), t(w[:9]), t(u[:9]), t(bias[:9]), t(bias[:9]), t(h0))[0].numpy())
    h, last = riverrun.rnn(a, w[:3], u[:3], nonlinearity="relu")
    assert np.array_equal(last, rt.rnn(t(a), t(w[:3]), t(u[:3]), nonlinearity="relu")[1].numpy())


def test_matrix_states_norms_and_losses():
    q, k, v = data(1, 9, 2, 4), data(1, 9, 2, 4), data(1, 9, 2, 3)
    g, beta, state = -abs(data(1, 9, 2)), abs(data(1, 9, 2)), data(2, 2, 4, 3)
    t, bounds = torch.from_numpy, np.array([0, 4, 9])
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    found = riverrun.gated_delta_rule(q, k, v, g, beta, None, state, bounds)
    tensors = [t(x) for x in (q, k, v, g, beta)]
    expected = rt.chunk_gated_delta_rule(*tensors, None, t(state), True, cu_seqlens=t(bounds))
    for a, b in zip(found, expected):
        assert np.array_equal(a, b.numpy())
    rows = -abs(data(1, 9, 2, 4))
    assert np.array_equal(riverrun.kda(q, k, v, rows, beta)[0], rt.chunk_kda(*tensors[:3], t(rows), t(beta))[0].numpy())
    assert np.array_equal(riverrun.gla(q, k, v, rows)[0], rt.chunk_gla(*tensors[:3], t(rows))[0].numpy())
    x, weight = data(6, 4), data(4)
    assert np.array_equal(riverrun.rms_norm(x, weight), rt.rms_norm(t(x), t(weight)).numpy())
    targets = np.array([0, 3, -1, 1, 2, 2], dtype=np.int32)
    loss = riverrun.cross_entropy(x, targets)
    assert loss.dtype == np.float32 and loss.shape == ()
    assert loss == rt.cross_entropy(t(x), t(targets)).item()


def test_gradients():
    a, b, h0, d = (data(*shape, dtype=np.float64) for shape in ((2, 7, 5), (2, 7, 5), (2, 5), (2, 7, 5)))
    h = riverrun.linear_scan(a, b, h0)
    found = riverrun.linear_scan_backward(a, b, h, d, h0)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (a, b, h0)]
    expected = torch.autograd.grad(rt.linear_scan(*leaves), leaves, torch.from_numpy(d))
    for x, y in zip(found, expected):
        assert np.array_equal(x, y.numpy())
    assert riverrun.linear_scan_backward(a, b, riverrun.linear_scan(a, b), d)[2] is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_layouts_give_the_same_bits(dtype):
    a, b = data(3, 8, 5, dtype=dtype), data(3, 8, 5, dtype=dtype)
    expected = riverrun.linear_scan(a, b)
    assert expected.dtype == dtype
    unaligned = np.frombuffer(b"x" + a.tobytes(), dtype, offset=1).reshape(a.shape)
    layouts = [
        np.asfortranarray(a),
        a.transpose(1, 0, 2).copy().transpose(1, 0, 2),
        np.repeat(a, 2, axis=2)[:, :, ::2],
        a[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1],
        np.concatenate([a, a], 2)[:, :, 5:],
        unaligned,
    ]
    for layout in layouts:
        assert np.array_equal(riverrun.linear_scan(layout, b), expected)
    read_only = a.copy()
    read_only.flags.writeable = False
    assert np.array_equal(riverrun.linear_scan(read_only, b), expected)
    assert np.array_equal(
        riverrun.linear_scan(np.broadcast_to(a[0, 0], a.shape), b), riverrun.linear_scan(np.tile(a[0, 0], (3, 8, 1)), b)
    )


def test_other_arrays_are_viewed():
    a, b = data(1, 4, 2, dtype=np.float64), data(1, 4, 2, dtype=np.float64)
    expected = riverrun.linear_scan(a, b)
    for other in (torch.from_numpy(a), memoryview(a), a.tolist()):
        found = riverrun.linear_scan(other, b)
        assert isinstance(found, np.ndarray) and np.array_equal(found, expected)
    weight = array.array("d", [1.0, 2.0])
    assert np.array_equal(riverrun.rms_norm(a, weight), riverrun.rms_norm(a, np.array([1.0, 2.0])))


class Elsewhere:
    """An array of another device, by DLPack's numbers."""

    def __dlpack_device__(self):
        return 2, 1

    def __dlpack__(self, **_):
        raise AssertionError("it is refused by its device")


def test_what_is_refused():
    a = data(2, 3, 4)
    cases = [
        (lambda: riverrun.linear_scan(a, Elsewhere()), r"DLPack's device \(2, 1\): arrays run on the CPU"),
        (lambda: riverrun.linear_scan(a, torch.zeros(2, 3, 4, requires_grad=True)), "cannot be viewed"),
        (lambda: riverrun.linear_scan(a, a[:1]), r"b: expected shape \[2, 3, 4\], found \[1, 3, 4\]"),
        (lambda: riverrun.linear_scan(a, a.astype(np.float64)), "b: expected dtype float32, found float64"),
        (lambda: riverrun.linear_scan(a.astype(">f4"), a), "a: expected one of the dtypes .* found >f4"),
        (lambda: riverrun.linear_scan(a.astype(int), a), "found int64"),
        (lambda: riverrun.gru(a, data(9, 4), data(9, 3), lengths=[1.0, 2.0]), "lengths: expected integers"),
        (lambda: riverrun.gru(a, data(9, 4), data(9, 3), lengths=[4, 0]), "lengths from 0 to 3"),
        (lambda: riverrun.cross_entropy(a, np.zeros((2, 2), int)), r"targets: expected shape \[2, 3\], found \[2, 2\]"),
        (lambda: riverrun.set_num_threads(0), "1 to 1024, found 0"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()


def test_empty_arrays():
    for shape in ((0, 3, 4), (2, 0, 4)):
        assert riverrun.linear_scan(data(*shape), data(*shape)).shape == shape
        h, last = riverrun.gru(data(*shape), data(9, 4), data(9, 3))
        assert h.shape == (*shape[:2], 3) and last.shape == (shape[0], 3)


def test_threads_do_not_change_the_bits():
    a, b = abs(data(4, 100, 200)) % 1, data(4, 100, 200)
    before = riverrun.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            riverrun.set_num_threads(threads)
            assert riverrun.get_num_threads() == threads
            results.append(riverrun.linear_scan(a, b))
    finally:
        riverrun.set_num_threads(before)
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("seed", range(3))
def test_verify_passes(seed):
    rows = riverrun.verify(seed)
    assert len(rows) > 150
    assert not [row for row in rows if not row.passed]


def test_verify_finds_wrong_results_and_gradients(monkeypatch):
    """Every operation, with a result or a gradient that is wrong in one element by a thousandth of the largest."""

    def spoiled(arrays):
        arrays = [x.copy() for x in arrays]
        arrays[0].flat[0] += arrays[0].dtype.type(np.abs(arrays[0]).max(initial=1) * 1e-3)
        return arrays

    for case in list(_verify.cases(0, _verify.Place("cpu"))):
        wrong_results = replace(case, run=lambda *x, c=case: spoiled(c.run(*x)))
        wrong_gradients = replace(case, back=lambda *x, c=case: spoiled(c.back(*x)))
        for wrong, what in ((wrong_results, "results"), (wrong_gradients, "gradients")):
            monkeypatch.setattr(_verify, "cases", lambda *_, wrong=wrong: [wrong])
            failed = [row for row in riverrun.verify() if not row.passed]
            assert [row for row in failed if (row.dtype, row.what) == ("float64", what)], f"{case.name}: {what}"
