"""torch.compile, autocast, checkpointing, vmap, hooks, distributed wrappers."""

import pytest
import torch
from torch.func import grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

import riverrun.torch as rt


class Model(torch.nn.Module):
    """Every layer, and the operations between them."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([rt.MinGRU(6, 8), rt.MinLSTM(8, 8), rt.RGLRU(8, 8)])
        self.cells = torch.nn.ModuleList(
            [rt.GRU(8, 8, batch_first=True), rt.LSTM(8, 4, batch_first=True, bidirectional=True), rt.RNN(8, 8, batch_first=True)]
        )
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x, reset, targets):
        for layer in self.layers:
            x, _ = layer(x, None, reset)
        for cell in self.cells:
            x, _ = cell(x, None, reset)
        q, k, v = (x.unflatten(2, (2, 4)) for _ in range(3))
        g = torch.nn.functional.logsigmoid(v)
        o, _ = rt.chunk_kda(q, k, v, g, torch.sigmoid(v[..., 0]), use_qk_l2norm_in_kernel=True)
        return rt.cross_entropy(rt.rms_norm(o.flatten(2), self.weight), targets)


def example(batch=2, steps=7):
    x = torch.randn(batch, steps, 6)
    reset = torch.rand(batch, steps) < 0.2
    return x, reset, torch.randint(0, 8, (batch, steps))


def gradients(model, function, *inputs):
    model.zero_grad()
    loss = function(*inputs)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def assert_same(a, b):
    # PyTorch's own operations between ours are fused by the compiler, and round otherwise.
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_without_breaks(backend):
    torch._dynamo.reset()
    model = Model()
    inputs = example()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_same(gradients(model, compiled, *inputs), gradients(model, model, *inputs))


def test_compile_with_changing_sizes():
    torch._dynamo.reset()
    model = Model()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, steps in ((2, 7), (3, 9), (4, 5)):
        inputs = example(batch, steps)
        assert_same(gradients(model, compiled, *inputs), gradients(model, model, *inputs))


def test_compile_by_inductor():
    torch._dynamo.reset()
    layer = rt.MinGRU(6, 8)

    def loss(x):
        return rt.rms_norm(layer(torch.sin(x))[0], torch.ones(8)).square().mean()

    x = torch.randn(2, 7, 6)
    try:
        compiled = torch.compile(loss, fullgraph=True)
        found = gradients(layer, compiled, x)
    except torch._inductor.exc.InductorError as error:
        if "compiler" not in str(error).lower():
            raise
        pytest.skip(f"Inductor has no C++ compiler here: {error}")
    assert_same(found, gradients(layer, loss, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_runs_in_float32(dtype):
    gru, projection, minimal = rt.GRU(6, 8, batch_first=True), torch.nn.Linear(6, 6), rt.MinGRU(8, 8)
    x = torch.randn(2, 5, 6, requires_grad=True)
    with torch.autocast("cpu", dtype):
        y = projection(x)
        assert y.dtype == dtype
        h, _ = gru(y)
        assert h.dtype == torch.float32
        z, _ = minimal(h)
        assert z.dtype == torch.float32
        q = projection(x).unflatten(2, (2, 3))
        o, _ = rt.chunk_gla(q, q, q, torch.nn.functional.logsigmoid(q))
        assert rt.rms_norm(z, torch.ones(8)).dtype == torch.float32
        loss = rt.cross_entropy(z, torch.zeros(2, 5, dtype=torch.int64)) + o.sum()
    assert loss.dtype == torch.float32
    loss.backward()
    assert x.grad.dtype == torch.float32 and all(p.grad.dtype == torch.float32 for p in gru.parameters())
    assert torch.equal(h, gru(y.float())[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    model = Model()
    x, reset, targets = example()
    x.requires_grad_()
    expected = gradients(model, model, x, reset, targets)
    found = gradients(model, lambda *a: checkpoint(model, *a, use_reentrant=reentrant), x, reset, targets)
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1], expected[1]):
        assert torch.equal(a, b)


def test_vmap_is_a_loop():
    a, b, h0 = torch.rand(4, 2, 5, 3), torch.randn(4, 2, 5, 3), torch.randn(2, 3)
    expected = torch.stack([rt.linear_scan(x, y, h0) for x, y in zip(a, b)])
    assert torch.equal(vmap(rt.linear_scan, (0, 0, None))(a, b, h0), expected)
    moved = vmap(rt.linear_scan, (1, 2, None))(a.movedim(0, 1), b.movedim(0, 2), h0)
    assert torch.equal(moved, expected)
    twice = vmap(vmap(lambda x, y: rt.linear_scan(x[None], y[None])[0]))(a, b)
    assert torch.equal(twice, rt.linear_scan(a.flatten(0, 1), b.flatten(0, 1)).view_as(a))
    weights = torch.randn(4, 9, 3), torch.randn(9, 3)
    h, last = vmap(lambda x, w: rt.gru(x, w, weights[1]))(b, weights[0])
    for index in range(4):
        y, end = rt.gru(b[index], weights[0][index], weights[1])
        assert torch.equal(h[index], y) and torch.equal(last[index], end)
    q = torch.randn(4, 2, 5, 2, 3)
    o, last = vmap(lambda q: rt.chunk_gla(q, q, q, -q.square(), output_final_state=True))(q)
    assert torch.equal(o[1], rt.chunk_gla(q[1], q[1], q[1], -q[1].square())[0])
    with pytest.raises(ValueError, match="dimension of size 0"):
        vmap(rt.linear_scan)(a[:0], b[:0])


def test_gradients_through_vmap():
    a, b = torch.rand(4, 2, 5, 3, requires_grad=True), torch.randn(4, 2, 5, 3)
    vmap(rt.linear_scan)(a, b).sum().backward()
    found, a.grad = a.grad, None
    rt.linear_scan(a.flatten(0, 1), b.flatten(0, 1)).sum().backward()
    assert torch.equal(found, a.grad)


def test_gradient_transforms():
    a, b = torch.rand(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)

    def loss(a):
        return rt.linear_scan(a, b).sin().sum()

    leaf = a.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    assert torch.equal(grad(loss)(a), expected)
    (second,) = torch.autograd.grad(expected.sum(), leaf)
    torch.testing.assert_close(grad(lambda x: grad(loss)(x).sum())(a), second, rtol=1e-12, atol=1e-12)
    rows = jacrev(lambda a: rt.linear_scan(a, b))(a)
    torch.testing.assert_close(rows.sum((0, 1, 2)), grad(lambda a: rt.linear_scan(a, b).sum())(a), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN", "MinGRU", "MinLSTM", "RGLRU"])
def test_gradients_of_each_sample(name):
    layer = getattr(rt, name)(3, 4, **({"batch_first": True} if name in ("GRU", "LSTM", "RNN") else {}))
    x = torch.randn(3, 5, 3)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        y = torch.func.functional_call(layer, parameters, (x[None],))[0]
        return rt.rms_norm(y, torch.ones(4)).square().sum() + rt.cross_entropy(y, torch.zeros(1, 5, dtype=torch.int64))

    each = vmap(grad(loss), (None, 0))(parameters, x)
    for index in range(3):
        layer.zero_grad()
        loss(dict(layer.named_parameters()), x[index]).backward()
        for key, parameter in layer.named_parameters():
            # The products around ours are batched under vmap, and round otherwise.
            torch.testing.assert_close(each[key][index], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_forward_derivatives_are_refused():
    a = torch.rand(1, 3, 2)
    with pytest.raises(RuntimeError):
        torch.func.jvp(lambda a: rt.linear_scan(a, a), (a,), (a,))


def test_inference_and_no_grad():
    layer = rt.GRU(6, 8)
    x = torch.randn(5, 2, 6)
    expected = layer(x)[0]
    with torch.inference_mode():
        assert torch.equal(layer(x)[0], expected)
    with torch.no_grad():
        y, _ = layer(x)
    assert torch.equal(y, expected) and not y.requires_grad


def test_frozen_weights_and_hooks():
    layer = rt.GRU(6, 8)
    layer.requires_grad_(False)
    x = torch.randn(5, 2, 6, requires_grad=True)
    seen = []
    y, _ = layer(x)
    y.register_hook(lambda g: seen.append(g.shape))
    y.sum().backward()
    assert x.grad is not None and seen == [y.shape] and layer.weight_ih_l0.grad is None


def test_gradients_that_accumulate():
    layer = rt.LSTM(6, 8)
    x = torch.randn(5, 2, 6)
    layer(x)[0].sum().backward()
    once = layer.weight_hh_l0.grad.clone()
    layer(x)[0].sum().backward()
    assert torch.equal(layer.weight_hh_l0.grad, 2 * once)


def test_backward_twice_needs_the_graph():
    a = torch.rand(1, 3, 2, requires_grad=True)
    h = rt.linear_scan(a, a).sum()
    h.backward(retain_graph=True)
    h.backward()
    with pytest.raises(RuntimeError, match="second time"):
        h.backward()


def test_changed_inputs_are_noticed():
    a, b = torch.rand(1, 3, 2, requires_grad=True), torch.randn(1, 3, 2)
    h = rt.linear_scan(a, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def test_data_parallel_in_one_process(tmp_path):
    """DDP, whose hooks and buckets see our gradients as others."""
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Model()
        inputs = example()
        expected = gradients(model, model, *inputs)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        found = gradients(model, wrapped, *inputs)
        assert torch.equal(found[0], expected[0])
        for a, b in zip(found[1], expected[1]):
            assert torch.equal(a, b)
    finally:
        torch.distributed.destroy_process_group()
