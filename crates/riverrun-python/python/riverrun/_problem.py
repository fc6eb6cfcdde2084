"""Checks of shapes and element types, the same for NumPy's arrays and PyTorch's tensors.

A library is a module with `dtype(x)`, the name of the element type; shapes are `x.shape` in both.
"""

from __future__ import annotations

#: The inputs of each gate, by the gate's name.
GATES = {
    "raw": ("a", "b"),
    "sigmoid": ("k", "b"),
    "min-gru": ("z", "n"),
    "min-gru-tanh": ("z", "n"),
    "min-gru-g": ("z", "n"),
    "min-lstm": ("f", "i", "n"),
    "min-lstm-tanh": ("f", "i", "n"),
    "min-lstm-g": ("f", "i", "n"),
    "min-lstm-raw": ("f", "i", "n"),
    "min-lstm-raw-tanh": ("f", "i", "n"),
    "min-lstm-raw-g": ("f", "i", "n"),
    "rg-lru": ("s", "u"),
}

#: Blocks of pre-activations of each cell, and blocks that its forward pass saves.
CELLS = {
    "gru": (3, 4),
    "lstm": (4, 5),
    "elman-tanh": (1, 0),
    "elman-relu": (1, 0),
}

#: The type of states and sums for each type of elements.
ARITHMETIC = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
}


def candidate_gate(base: str, candidate: str) -> str:
    """The gate `base` with a candidate's activation: `identity`, `tanh` or `g`."""
    if candidate == "identity":
        return base
    if candidate in ("tanh", "g"):
        return f"{base}-{candidate}"
    raise ValueError(f"candidate: expected 'identity', 'tanh' or 'g', found {candidate!r}")


def expect_dims(what, x, dims, sizes):
    """Refuses another number of dimensions than `dims`; `sizes` names them."""
    if len(x.shape) != dims:
        raise ValueError(f"{what}: expected {dims} dimensions {sizes}, found shape {list(x.shape)}")


def expect_shape(what, x, expected):
    """Refuses another shape."""
    if x is not None and list(x.shape) != list(expected):
        raise ValueError(f"{what}: expected shape {list(expected)}, found {list(x.shape)}")


def expect_dtype(lib, what, x, expected):
    """Refuses another element type."""
    if x is not None and lib.dtype(x) != expected:
        raise ValueError(f"{what}: expected dtype {expected}, found {lib.dtype(x)}")


def expect_floats(lib, what, x):
    """Refuses element types that the kernels do not have; returns the name."""
    name = lib.dtype(x)
    if name not in ARITHMETIC:
        known = ", ".join(ARITHMETIC)
        raise ValueError(f"{what}: expected one of the dtypes {known}, found {name}")
    return name


def scan(lib, gate, inputs, h0, reset):
    """The sizes `(B, T, D)` of a recurrence, and its element type.

    `inputs` are as many `[B, T, D]` as the gate takes, or one `[B, T, inputs · D]`.
    """
    if gate not in GATES:
        raise ValueError(f"gate: expected one of {', '.join(GATES)}, found {gate!r}")
    names = GATES[gate]
    count = len(names)
    first = inputs[0]
    packed = len(inputs) == 1
    name = "x" if packed else names[0]
    expect_dims(name, first, 3, "[B, T, D]")
    batch, steps, dim = first.shape
    if packed:
        if dim % count != 0:
            raise ValueError(f"x: expected a multiple of {count} channels, found shape {list(first.shape)}")
        dim = dim // count
    elif len(inputs) != count:
        raise ValueError(f"gate {gate}: expected {count} inputs, found {len(inputs)}")
    if dim == 0:
        raise ValueError(f"{name}: expected at least one channel, found shape {list(first.shape)}")
    dtype = expect_floats(lib, name, first)
    for what, x in zip(names[1:], inputs[1:]):
        expect_shape(what, x, first.shape)
        expect_dtype(lib, what, x, dtype)
    expect_shape("h0", h0, (batch, dim))
    expect_dtype(lib, "h0", h0, dtype)
    expect_shape("reset", reset, (batch, steps))
    expect_dtype(lib, "reset", reset, "bool")
    return (batch, steps, dim), dtype


def cell(lib, kind, x, w, u, b_ih, b_hh, h0, c0, reset, lengths):
    """The sizes `(B, T, I, H)` of a cell's sequence, and its element type."""
    if kind not in CELLS:
        raise ValueError(f"cell: expected one of {', '.join(CELLS)}, found {kind!r}")
    gates, _ = CELLS[kind]
    expect_dims("x", x, 3, "[B, T, I]")
    expect_dims("weight_hh", u, 2, "[gates * H, H]")
    batch, steps, width = x.shape
    hidden = u.shape[1]
    if hidden == 0:
        raise ValueError(f"weight_hh: expected at least one hidden unit, found shape {list(u.shape)}")
    dtype = expect_floats(lib, "x", x)
    rows = gates * hidden
    expect_shape("weight_hh", u, (rows, hidden))
    expect_shape("weight_ih", w, (rows, width))
    expect_shape("bias_ih", b_ih, (rows,))
    expect_shape("bias_hh", b_hh, (rows,))
    expect_shape("h0", h0, (batch, hidden))
    if c0 is not None and kind != "lstm":
        raise ValueError(f"c0: expected None for the cell {kind}, found shape {list(c0.shape)}")
    expect_shape("c0", c0, (batch, hidden))
    for what, other in (
        ("weight_ih", w),
        ("weight_hh", u),
        ("bias_ih", b_ih),
        ("bias_hh", b_hh),
        ("h0", h0),
        ("c0", c0),
    ):
        expect_dtype(lib, what, other, dtype)
    expect_shape("reset", reset, (batch, steps))
    expect_dtype(lib, "reset", reset, "bool")
    expect_shape("lengths", lengths, (batch,))
    expect_dtype(lib, "lengths", lengths, "int64")
    return (batch, steps, width, hidden), dtype


def matrix_state(lib, q, k, v, g, beta, initial, reset, bounds):
    """The sizes `(B, T, J, H, K, V)` of a recurrence with matrix states, the form of its decay, its number of sequences and
    its element type."""
    expect_dims("q", q, 4, "[B, T, H, K]")
    expect_dims("v", v, 4, "[B, T, H, V]")
    batch, steps, key_heads, key = q.shape
    heads, value = v.shape[2], v.shape[3]
    dtype = expect_floats(lib, "q", q)
    expect_shape("k", k, q.shape)
    expect_shape("v", v, (batch, steps, heads, value))
    if key_heads == 0 or heads == 0 or heads % key_heads != 0:
        raise ValueError(
            f"v: expected a multiple of the {key_heads} heads of q, found shape {list(v.shape)} with q of {list(q.shape)}"
        )
    gate = "none"
    if g is not None:
        gate = "head" if len(g.shape) == 3 else "row"
        expect_shape("g", g, (batch, steps, heads) if gate == "head" else (batch, steps, heads, key))
    expect_shape("beta", beta, (batch, steps, heads))
    sequences = batch
    if bounds is not None:
        expect_dims("cu_seqlens", bounds, 1, "[N + 1]")
        if batch != 1:
            raise ValueError(
                f"cu_seqlens: expected a batch of 1, in which sequences follow each other, found q of shape {list(q.shape)}"
            )
        sequences = bounds.shape[0] - 1
        if sequences < 0:
            raise ValueError("cu_seqlens: expected at least one number, found shape [0]")
    expect_shape("initial_state", initial, (sequences, heads, key, value))
    for what, other in (("k", k), ("v", v), ("g", g), ("beta", beta)):
        expect_dtype(lib, what, other, dtype)
    expect_dtype(lib, "initial_state", initial, ARITHMETIC[dtype])
    expect_shape("reset", reset, (batch, steps))
    expect_dtype(lib, "reset", reset, "bool")
    return (batch, steps, key_heads, heads, key, value), gate, sequences, dtype


def rms_norm(lib, x, weight):
    """The element type of an RMSNorm."""
    expect_dims("weight", weight, 1, "[D]")
    dim = weight.shape[0]
    if len(x.shape) == 0 or x.shape[-1] != dim or dim == 0:
        raise ValueError(f"x: expected shape [..., {dim}] for a weight of {list(weight.shape)}, found {list(x.shape)}")
    dtype = expect_floats(lib, "x", x)
    expect_dtype(lib, "weight", weight, dtype)
    return dtype


def cross_entropy(lib, logits, targets):
    """The rows and classes of a cross-entropy, and its element type."""
    expect_dims("logits", logits, 2, "[rows, classes]")
    rows, classes = logits.shape
    if classes == 0:
        raise ValueError(f"logits: expected at least one class, found shape {list(logits.shape)}")
    dtype = expect_floats(lib, "logits", logits)
    expect_shape("targets", targets, (rows,))
    expect_dtype(lib, "targets", targets, "int64")
    return (rows, classes), dtype
