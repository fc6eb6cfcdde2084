"""The kernels on arrays of a library: NumPy's, by `riverrun._arrays`, or PyTorch's, by `riverrun.torch._tensors`.

Such a module has `dtype(x)`, `array(x)` (address and elements of a contiguous array), `view(x)` and `columns(x, index, width)`
(address and strides of rows), `dense(x)`, `rows(x)`, `states(x)` and `flags(x, dtype)` (the array itself, or a copy where its
layout does not fit), `empty(like, shape, dtype)`, `on_gpu(x)` and `place(x)`: where a call runs. A copy is kept in a variable until
its call is over.
"""

from __future__ import annotations

from riverrun import _problem as problem
from riverrun import _riverrun as native


def _optional(lib, x):
    return None if x is None else lib.array(x)


def _dense(lib, *arrays):
    return [None if x is None else lib.dense(x) for x in arrays]


def _gate_views(lib, gate, inputs, dim):
    if len(inputs) > 1:
        return [lib.view(x) for x in inputs]
    return [lib.columns(inputs[0], index, dim) for index, _ in enumerate(problem.GATES[gate])]


def scan(lib, gate, inputs, h0, reset, reverse):
    """`h`, `[B, T, D]`, of a recurrence; the arguments are those of `problem.scan`."""
    shape, dtype = problem.scan(lib, gate, inputs, h0, reset)
    inputs = [lib.rows(x) for x in inputs]
    (h0,), reset = _dense(lib, h0), lib.flags(reset, dtype)
    h = lib.empty(inputs[0], shape, dtype)
    views = _gate_views(lib, gate, inputs, shape[2])
    place = lib.place(h)
    native.scan(place, dtype, gate, shape, reverse, views, _optional(lib, h0), _optional(lib, reset), lib.array(h))
    return h


def scan_backward(lib, gate, inputs, h0, reset, reverse, h, d_h):
    """The gradients of the inputs, a list, and that of `h0`, `None` without it."""
    shape, dtype = problem.scan(lib, gate, inputs, h0, reset)
    for what, x in (("h", h), ("d_h", d_h)):
        problem.expect_shape(what, x, shape)
        problem.expect_dtype(lib, what, x, dtype)
    inputs = [lib.rows(x) for x in inputs]
    h, d_h = lib.states(h), lib.states(d_h)
    (h0,), reset = _dense(lib, h0), lib.flags(reset, dtype)
    d_inputs = [lib.empty(x, x.shape, dtype) for x in inputs]
    d_h0 = None if h0 is None else lib.empty(h0, h0.shape, dtype)
    native.scan_back(
        lib.place(h),
        dtype,
        gate,
        shape,
        reverse,
        _gate_views(lib, gate, inputs, shape[2]),
        _optional(lib, h0),
        _optional(lib, reset),
        lib.view(h),
        lib.view(d_h),
        [lib.array(d) for d in d_inputs],
        _optional(lib, d_h0),
    )
    return d_inputs, d_h0


class _Arguments:
    """Arrays of a call, as the native module takes them: attributes of address and elements."""

    def __init__(self, lib, arrays):
        for name, x in arrays.items():
            setattr(self, name, _optional(lib, x))


_CELL = ("x", "w", "u", "b_ih", "b_hh", "h0", "c0", "reset", "lengths")


def cell(lib, kind, reverse, save, x, w, u, b_ih, b_hh, h0, c0, reset, lengths):
    """`(h, h_last, c_last, saved)` of a cell; the last two are `None` where there is nothing in them."""
    arrays = (x, w, u, b_ih, b_hh, h0, c0, reset, lengths)
    sizes, dtype = problem.cell(lib, kind, *arrays)
    arrays = dict(zip(_CELL, _dense(lib, *arrays)))
    batch, steps, _, hidden = sizes
    _, blocks = problem.CELLS[kind]
    h = lib.empty(x, (batch, steps, hidden), dtype)
    h_last = lib.empty(x, (batch, hidden), dtype)
    c_last = lib.empty(x, (batch, hidden), dtype) if kind == "lstm" else None
    arithmetic = problem.ARITHMETIC[dtype]
    saved = lib.empty(x, (batch, steps, blocks * hidden), arithmetic) if save else None
    native.cell(
        lib.place(h),
        dtype,
        kind,
        sizes,
        reverse,
        _Arguments(lib, arrays),
        lib.array(h),
        lib.array(h_last),
        _optional(lib, c_last),
        _optional(lib, saved),
    )
    return h, h_last, c_last, saved


#: The gradients of a cell, in order.
CELL_GRADIENTS = ("x", "w", "u", "b_ih", "b_hh", "h0", "c0")


def cell_backward(
    lib, kind, reverse, wanted, x, w, u, b_ih, b_hh, h0, c0, reset, lengths, h, saved, d_h, d_h_last, d_c_last
):
    """The gradients of `x, w, u, b_ih, b_hh, h0, c0`; `None` where `wanted` is false or there is no such input."""
    arrays = (x, w, u, b_ih, b_hh, h0, c0, reset, lengths)
    sizes, dtype = problem.cell(lib, kind, *arrays)
    arrays = dict(zip(_CELL, _dense(lib, *arrays)))
    batch, steps, _, hidden = sizes
    problem.expect_shape("h", h, (batch, steps, hidden))
    problem.expect_shape("saved", saved, (batch, steps, problem.CELLS[kind][1] * hidden))
    problem.expect_dtype(lib, "saved", saved, problem.ARITHMETIC[dtype])
    for what, x, shape in (
        ("d_h", d_h, (batch, steps, hidden)),
        ("d_h_last", d_h_last, (batch, hidden)),
        ("d_c_last", d_c_last, (batch, hidden)),
        ("h", h, (batch, steps, hidden)),
    ):
        problem.expect_shape(what, x, shape)
        problem.expect_dtype(lib, what, x, dtype)
    h, saved, d_h, d_h_last, d_c_last = _dense(lib, h, saved, d_h, d_h_last, d_c_last)
    gradients = {}
    for name, wants in zip(CELL_GRADIENTS, wanted):
        like = arrays[name]
        gradients[name] = lib.empty(like, like.shape, dtype) if wants and like is not None else None
    native.cell_back(
        lib.place(h),
        dtype,
        kind,
        sizes,
        reverse,
        _Arguments(lib, arrays),
        lib.array(h),
        lib.array(saved),
        _optional(lib, d_h),
        _optional(lib, d_h_last),
        _optional(lib, d_c_last),
        _Arguments(lib, gradients),
    )
    return [gradients[name] for name in CELL_GRADIENTS]


class _Form:
    """The form of a recurrence with matrix states, as the native module takes it."""

    def __init__(self, gate, erase, sizes, bounds):
        self.gate = gate
        self.erase = erase
        self.sizes = sizes
        self.bounds = None if bounds is None else [int(bound) for bound in bounds.tolist()]
        if bounds is not None and min(self.bounds) < 0:
            raise ValueError(f"cu_seqlens: expected numbers from 0, found {self.bounds}")


_STATE = ("q", "k", "v", "g", "beta", "initial", "reset")


def matrix_state(lib, q, k, v, g, beta, initial, reset, bounds):
    """`(o, last)` of a recurrence with matrix states; `q` is scaled."""
    sizes, gate, sequences, dtype = problem.matrix_state(lib, q, k, v, g, beta, initial, reset, bounds)
    arrays = dict(zip(_STATE, [*_dense(lib, q, k, v, g, beta, initial), lib.flags(reset, dtype)]))
    _, _, _, heads, key, value = sizes
    o = lib.empty(v, v.shape, dtype)
    last = lib.empty(v, (sequences, heads, key, value), problem.ARITHMETIC[dtype])
    form = _Form(gate, beta is not None, sizes, bounds)
    native.matrix_state(lib.place(v), dtype, form, _Arguments(lib, arrays), lib.array(o), lib.array(last))
    return o, last


def matrix_state_backward(lib, q, k, v, g, beta, initial, reset, bounds, d_o, d_last):
    """The gradients of `q, k, v, g, beta, initial`; `None` for a `g` or `beta` that there is not."""
    sizes, gate, sequences, dtype = problem.matrix_state(lib, q, k, v, g, beta, initial, reset, bounds)
    arrays = dict(zip(_STATE, [*_dense(lib, q, k, v, g, beta, initial), lib.flags(reset, dtype)]))
    _, _, _, heads, key, value = sizes
    state = (sequences, heads, key, value)
    problem.expect_shape("d_o", d_o, v.shape)
    problem.expect_dtype(lib, "d_o", d_o, dtype)
    problem.expect_shape("d_last", d_last, state)
    problem.expect_dtype(lib, "d_last", d_last, problem.ARITHMETIC[dtype])
    d_o, d_last = _dense(lib, d_o, d_last)
    gradients = {
        name: None if arrays[name] is None else lib.empty(v, arrays[name].shape, dtype)
        for name in ("q", "k", "v", "g", "beta")
    }
    gradients["initial"] = lib.empty(v, state, problem.ARITHMETIC[dtype])
    form = _Form(gate, beta is not None, sizes, bounds)
    native.matrix_state_back(
        lib.place(v),
        dtype,
        form,
        _Arguments(lib, arrays),
        lib.array(d_o),
        _optional(lib, d_last),
        _Arguments(lib, gradients),
    )
    return list(gradients.values())


def rms_norm(lib, x, weight, eps):
    """`y` of RMSNorm over the last dimension."""
    dtype = problem.rms_norm(lib, x, weight)
    x, weight = _dense(lib, x, weight)
    y = lib.empty(x, x.shape, dtype)
    native.rms_norm(lib.place(x), dtype, eps, lib.array(x), lib.array(weight), lib.array(y))
    return y


def rms_norm_backward(lib, x, weight, eps, d_y):
    """The gradients of `x` and `weight`."""
    dtype = problem.rms_norm(lib, x, weight)
    problem.expect_shape("d_y", d_y, x.shape)
    problem.expect_dtype(lib, "d_y", d_y, dtype)
    x, weight, d_y = _dense(lib, x, weight, d_y)
    d_x, d_weight = lib.empty(x, x.shape, dtype), lib.empty(weight, weight.shape, dtype)
    native.rms_norm_back(
        lib.place(x),
        dtype,
        eps,
        lib.array(x),
        lib.array(weight),
        lib.array(d_y),
        lib.array(d_x),
        lib.array(d_weight),
    )
    return d_x, d_weight


def cross_entropy(lib, logits, targets):
    """`(loss, lse, weight)`: the mean loss, the logarithm of the sum of exponentials of each row, and 1 / count."""
    (rows, classes), dtype = problem.cross_entropy(lib, logits, targets)
    logits, targets = _dense(lib, logits, targets)
    arithmetic = problem.ARITHMETIC[dtype]
    loss, weight = lib.empty(logits, (), arithmetic), lib.empty(logits, (), arithmetic)
    lse = lib.empty(logits, (rows,), arithmetic)
    native.cross_entropy(
        lib.place(logits),
        dtype,
        classes,
        lib.array(logits),
        lib.array(targets),
        lib.array(lse),
        lib.array(loss),
        lib.array(weight),
    )
    return loss, lse, weight


def cross_entropy_backward(lib, logits, targets, lse, scale):
    """The gradient of the logits, for `scale = ∂L/∂loss / count`, one number of the type of `lse`."""
    (rows, classes), dtype = problem.cross_entropy(lib, logits, targets)
    problem.expect_shape("lse", lse, (rows,))
    problem.expect_dtype(lib, "lse", lse, problem.ARITHMETIC[dtype])
    problem.expect_shape("scale", scale, ())
    problem.expect_dtype(lib, "scale", scale, problem.ARITHMETIC[dtype])
    logits, targets, lse, scale = _dense(lib, logits, targets, lse, scale)
    d_logits = lib.empty(logits, logits.shape, dtype)
    native.cross_entropy_back(
        lib.place(logits),
        dtype,
        classes,
        lib.array(logits),
        lib.array(targets),
        lib.array(lse),
        lib.array(scale),
        lib.array(d_logits),
    )
    return d_logits
