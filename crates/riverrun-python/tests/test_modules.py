"""What PyTorch's own tests ask of nn.GRU, nn.LSTM and nn.RNN, asked of the drop-ins beside them."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import riverrun.torch as rt

NAMES = ["GRU", "LSTM", "RNN"]
CONSTRUCTIONS = list(itertools.product([1, 3], [False, True], [False, True], [False, True]))


def pair(name, *args, dtype=torch.float64, **kwargs):
    """PyTorch's layer and ours with its weights."""
    theirs = getattr(torch.nn, name)(*args, dtype=dtype, **kwargs)
    ours = getattr(rt, name)(*args, dtype=dtype, **kwargs)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def states(name, count, batch, hidden, dtype=torch.float64):
    shape = (count, hidden) if batch is None else (count, batch, hidden)
    made = [torch.randn(shape, dtype=dtype) for _ in range(2 if name == "LSTM" else 1)]
    return tuple(made) if name == "LSTM" else made[0]


def flat(outputs):
    y, last = outputs
    y = y.data if hasattr(y, "batch_sizes") else y
    return [y, *(last if isinstance(last, tuple) else (last,))]


def assert_same(ours, theirs):
    # Float64: both are within rounding of the exact result.
    for a, b in zip(flat(ours), flat(theirs)):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def assert_same_gradients(ours, theirs, run_ours, run_theirs):
    outputs = flat(run_ours(ours))
    cotangents = [torch.randn_like(x) for x in outputs]
    torch.autograd.backward(outputs, cotangents)
    torch.autograd.backward(flat(run_theirs(theirs)), cotangents)
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-10, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("layers, bias, batch_first, bidirectional", CONSTRUCTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_gradients(name, layers, bias, batch_first, bidirectional):
    theirs, ours = pair(name, 5, 7, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [(n, p.shape) for n, p in theirs.named_parameters()]
    count = layers * (2 if bidirectional else 1)
    x = torch.randn(4, 6, 5, dtype=torch.float64)
    hx = states(name, count, 4 if batch_first else 6, 7)
    assert_same(ours(x), theirs(x))
    assert ours(x)[0].is_contiguous()
    assert_same(ours(x, hx), theirs(x, hx))
    assert_same_gradients(ours, theirs, lambda m: m(x, hx), lambda m: m(x, hx))
    single = x[0]
    assert_same(ours(single), theirs(single))
    hx = states(name, count, None, 7)
    assert_same(ours(single, hx), theirs(single, hx))


@pytest.mark.parametrize("sorted_by_length", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences(name, bidirectional, batch_first, sorted_by_length):
    theirs, ours = pair(name, 5, 7, 2, batch_first=batch_first, bidirectional=bidirectional)
    lengths = [6, 4, 4, 1] if sorted_by_length else [4, 6, 1, 4]
    x = torch.randn(4, 6, 5, dtype=torch.float64)
    leaves = []

    def packed(leaf):
        leaves.append(leaf)
        value = leaf if batch_first else leaf.transpose(0, 1)
        return pack_padded_sequence(value, lengths, batch_first=batch_first, enforce_sorted=sorted_by_length)

    hx = states(name, 4 if bidirectional else 2, 4, 7)
    for state in (None, hx):
        inputs = [packed(x.clone().requires_grad_()) for _ in range(2)]
        found, expected = ours(inputs[0], state), theirs(inputs[1], state)
        assert_same(found, expected)
        for a, b in zip(found[0][1:], expected[0][1:]):
            assert (a is None) == (b is None) and (a is None or torch.equal(a, b))
        padded = [pad_packed_sequence(y[0], batch_first=batch_first)[0] for y in (found, expected)]
        torch.testing.assert_close(*padded, rtol=1e-9, atol=1e-11)
        assert_same_gradients(ours, theirs, lambda _: found, lambda _: expected)
        torch.testing.assert_close(leaves[-2].grad, leaves[-1].grad, rtol=1e-9, atol=1e-10)


def test_a_packed_sequence_is_its_sequences_one_by_one():
    layer = rt.LSTM(5, 7, bidirectional=True, dtype=torch.float64)
    pieces = [torch.randn(n, 5, dtype=torch.float64) for n in (5, 3, 3, 1)]
    y, (h, c) = layer(pack_sequence(pieces))
    padded, lengths = pad_packed_sequence(y)
    for index, piece in enumerate(pieces):
        single, (h1, c1) = layer(piece)
        assert torch.equal(padded[: lengths[index], index], single)
        assert torch.equal(h[:, index], h1) and torch.equal(c[:, index], c1)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_reset_is_a_new_piece(name, bidirectional, batch_first):
    layer = getattr(rt, name)(3, 4, 2, batch_first=batch_first, bidirectional=bidirectional, dtype=torch.float64)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    cuts = [[0, 4, 9], [0, 2, 3, 9]]
    reset = torch.zeros(2, 9, dtype=torch.bool)
    for row, cut in enumerate(cuts):
        reset[row, cut[1:-1]] = True
    y, _ = layer(x if batch_first else x.transpose(0, 1), reset=reset if batch_first else reset.T)
    y = y if batch_first else y.transpose(0, 1)
    directions = 2 if bidirectional else 1
    for row, cut in enumerate(cuts):
        # With two layers in both directions a piece sees its own steps only.
        pieces = [layer(x[row, start:end])[0] for start, end in zip(cut, cut[1:])]
        assert y[row].shape == (9, directions * 4)
        assert torch.equal(torch.cat(pieces), y[row])


@pytest.mark.parametrize("batch_first", [False, True])
def test_resets_of_packed_sequences(batch_first):
    layer = rt.GRU(3, 4, batch_first=batch_first, bidirectional=True, dtype=torch.float64)
    x = torch.randn(3, 6, 3, dtype=torch.float64)
    lengths = torch.tensor([4, 6, 2])
    reset = torch.rand(3, 6) < 0.4
    packed = pack_padded_sequence(x if batch_first else x.transpose(0, 1), lengths, batch_first, enforce_sorted=False)
    y, h = layer(packed, reset=reset if batch_first else reset.T)
    padded, _ = pad_packed_sequence(y, batch_first=True)
    for row, length in enumerate(lengths):
        single, h1 = layer(x[row, :length], reset=reset[row, :length])
        assert torch.equal(padded[row, :length], single) and torch.equal(h[:, row], h1)


def test_dropout():
    theirs, ours = pair("GRU", 5, 7, 3, dropout=0.5)
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    ours.eval(), theirs.eval()
    assert_same(ours(x), theirs(x))
    ours.train()
    torch.manual_seed(3)
    a = ours(x)[0]
    torch.manual_seed(3)
    assert torch.equal(ours(x)[0], a)
    assert not torch.equal(ours(x)[0], a)
    ours.dropout = 1.0
    torch.testing.assert_close(ours(x)[0][:, 0], ours(torch.randn_like(x))[0][:, 0])


def test_relu():
    for arguments in ({"nonlinearity": "relu"}, {}):
        args = (5, 7, 1) if arguments else (5, 7, 1, "relu")
        theirs, ours = torch.nn.RNN(*args, **arguments).double(), rt.RNN(*args, **arguments).double()
        ours.load_state_dict(theirs.state_dict())
        x = torch.randn(4, 2, 5, dtype=torch.float64)
        assert ours.mode == theirs.mode and ours.nonlinearity == "relu"
        assert_same(ours(x), theirs(x))
    with pytest.raises(ValueError, match="'tanh' or 'relu'"):
        rt.RNN(5, 7, nonlinearity="gelu")


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_go_both_ways(name):
    theirs, ours = pair(name, 5, 7, 2, bidirectional=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    fresh = getattr(rt, name)(5, 7, 2, bidirectional=True, dtype=torch.float64)
    theirs.load_state_dict(fresh.state_dict())
    file = io.BytesIO()
    torch.save(theirs.state_dict(), file)
    file.seek(0)
    ours.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    assert_same(ours(x), theirs(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        getattr(rt, name)(5, 8).load_state_dict(getattr(torch.nn, name)(5, 7).state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_are_pytorchs(name):
    torch.manual_seed(5)
    theirs = getattr(torch.nn, name)(5, 7, 2)
    torch.manual_seed(5)
    ours = getattr(rt, name)(5, 7, 2)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(a, b)
    assert repr(ours) == repr(theirs)


def test_options_that_are_refused():
    with pytest.raises(ValueError, match="proj_size: expected 0, found 3"):
        rt.LSTM(5, 7, proj_size=3)
    with pytest.raises(ValueError, match="hidden_size"):
        rt.GRU(5, 0)
    with pytest.raises(ValueError, match="dropout"):
        rt.GRU(5, 7, dropout=2.0)
    with pytest.raises(ValueError, match="num_layers"):
        rt.GRU(5, 7, 0)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_shapes_are_refused_with_both(name):
    layer = getattr(rt, name)(5, 7)
    x = torch.randn(4, 2, 5)
    wrong = states(name, 1, 3, 7, torch.float32)
    with pytest.raises(ValueError, match=r"h_0: expected shape \[1, 2, 7\], found \[1, 3, 7\]"):
        layer(x, wrong)
    with pytest.raises(ValueError, match=r"h_0: expected shape \[1, 7\], found \[1, 3, 7\]"):
        layer(x[:, 0], wrong)
    with pytest.raises(ValueError, match=r"expected 5 features, found shape \[4, 2, 6\]"):
        layer(torch.randn(4, 2, 6))
    with pytest.raises(ValueError, match=r"2 or 3 dimensions, found shape \[5\]"):
        layer(torch.randn(5))
    with pytest.raises(ValueError, match=r"reset: expected shape \[4, 2\], found \[2, 4\]"):
        layer(x, reset=torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="reset: expected dtype bool, found float32"):
        layer(x, reset=torch.zeros(4, 2))
    with pytest.raises(ValueError, match="expected dtype float64, found float32"):
        layer(x.double())
    with pytest.raises(ValueError, match="x: expected a tensor on the CPU or an NVIDIA GPU, found one on meta"):
        layer(x.to("meta"))
    if name == "LSTM":
        with pytest.raises(ValueError, match="2 states, found 1"):
            layer(x, (torch.zeros(1, 2, 7),))


@pytest.mark.parametrize("name", NAMES)
def test_empty_input(name):
    layer = getattr(rt, name)(5, 7, 2, bidirectional=True)
    for shape in ((4, 0), (0, 2), (0, 0)):
        y, last = layer(torch.randn(*shape, 5))
        assert y.shape == (*shape, 14)
        assert flat((y, last))[1].shape == (4, shape[1], 7)
    packed = pack_padded_sequence(torch.randn(3, 1, 5), [3])
    assert layer(packed)[0].data.shape == (3, 14)


@pytest.mark.parametrize("name", [*NAMES, "MinGRU", "MinLSTM", "RGLRU"])
def test_pickle_and_deepcopy(name):
    layer = getattr(rt, name)(5, 7)
    x = torch.randn(4, 2, 5)
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert torch.equal(other(x)[0], layer(x)[0])
    y = layer(x)[0].detach()
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(layer(x)[0], y)


def test_training_learns_what_pytorchs_does():
    theirs, ours = pair("LSTM", 3, 8, batch_first=True)
    x, target = torch.randn(6, 10, 3, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    losses = []
    for layer in (theirs, ours):
        optimizer = torch.optim.Adam(layer.parameters(), 0.01)
        for _ in range(8):
            optimizer.zero_grad()
            loss = (layer(x)[0][:, -1] - target).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    # Rounding, through 8 steps.
    assert abs(losses[0] - losses[1]) < 1e-9 * losses[0]


def test_functional_call_and_parametrization():
    layer = rt.GRU(5, 7)
    x = torch.randn(4, 2, 5)
    doubled = {name: 2 * value for name, value in layer.named_parameters()}
    y = torch.func.functional_call(layer, doubled, (x,))[0]
    other = rt.GRU(5, 7)
    other.load_state_dict(doubled)
    assert torch.equal(y, other(x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*NAMES, "MinGRU", "MinLSTM", "RGLRU"])
def test_dtypes(name, dtype):
    layer = getattr(rt, name)(5, 7).to(dtype)
    x = torch.randn(4, 2, 5, dtype=dtype, requires_grad=True)
    y, last = layer(x)
    assert y.dtype == dtype and flat((y, last))[1].dtype == dtype
    y.sum().backward()
    assert x.grad.dtype == dtype and all(p.grad.dtype == dtype for p in layer.parameters())


@pytest.mark.parametrize("name", ["MinGRU", "MinLSTM", "RGLRU"])
def test_layers_on_scans(name):
    layer = getattr(rt, name)(5, 7, dtype=torch.float64)
    x = torch.randn(3, 8, 5, dtype=torch.float64)
    y, last = layer(x)
    assert y.shape == (3, 8, 7) and torch.equal(last, y[:, -1])
    first, state = layer(x[:, :3])
    second, _ = layer(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-12, atol=1e-12)
    backward = getattr(rt, name)(5, 7, reverse=True, dtype=torch.float64)
    backward.load_state_dict(layer.state_dict())
    z, last = backward(x.flip(1))
    torch.testing.assert_close(z.flip(1), y, rtol=1e-12, atol=1e-12)
    assert torch.equal(last, z[:, 0])
    assert torch.equal(layer(x[:, :0], state)[1], state)
    with pytest.raises(ValueError, match=r"x: expected shape \[3, 8, 5\], found \[3, 8, 4\]"):
        layer(x[:, :, :4])
    if name != "RGLRU":
        long = getattr(rt, name)(5, 64, memory=1000)
        assert long(torch.zeros(1, 1, 5))[0].shape == (1, 1, 64)
        with pytest.raises(ValueError, match="memory"):
            getattr(rt, name)(5, 7, bias=False, memory=10)
