"""NVIDIA GPUs: results against the CPU's in float64, and what PyTorch promises of an operation there."""

import gc
import threading

import pytest
import reference
import test_cells
import test_matrix_state
import test_scan
import torch

import riverrun
import riverrun.torch as rt
from riverrun import _problem
from riverrun.torch import _scan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICE = "cuda"


def moved(operation):
    """The operation on a GPU, of tensors of the CPU."""

    def run(*tensors):
        results = operation(*(x.to(DEVICE) for x in tensors))
        results = results if isinstance(results, tuple) else (results,)
        assert all(x.is_cuda for x in results)
        return tuple(x.cpu() for x in results)

    return run


def marks(reset):
    return None if reset is None else reset.to(DEVICE)


def scans():
    """Every gate step by step, and by look-back with resets in reverse order; some with channels that fill no vector."""
    # Each kernel takes about a second to compile.
    for name, *rest in test_scan.OPERATIONS:
        yield pytest.param(name, *rest, torch.float32, 3, 40, 24, False, id=f"{name}-short")
        yield pytest.param(name, *rest, torch.bfloat16, 2, 200, 64, True, id=f"{name}-long")
        if name in ("raw", "min-gru-identity", "rg-lru"):
            yield pytest.param(name, *rest, torch.float16, 2, 129, 7, False, id=f"{name}-odd")


@pytest.mark.parametrize("name, count, operation, formula, dtype, batch, steps, dim, marked", list(scans()))
def test_scans(name, count, operation, formula, dtype, batch, steps, dim, marked):
    reset = torch.rand(batch, steps) < 0.05 if marked else None
    tensors = test_scan.inputs(name, count, (batch, steps, dim)) + [torch.randn(batch, dim, dtype=torch.float64)]
    reference.compare(
        moved(lambda *x: operation(*x, marks(reset), marked)),
        lambda *x: formula(*x, reset, marked),
        tensors,
        dtype,
        steps,
    )


@pytest.mark.parametrize("gate", ["raw", "min-gru", "min-lstm"])
def test_scans_of_inputs_side_by_side(gate):
    """As one linear layer writes them: the bits of separate inputs."""
    count = len(_problem.GATES[gate])
    inputs = [torch.rand(2, 150, 24, device=DEVICE, requires_grad=True) for _ in range(count)]
    x = torch.cat(inputs, 2).detach().requires_grad_()
    cotangent = torch.randn(2, 150, 24, device=DEVICE)
    packed = rt.gated_scan(x, gate)
    packed.backward(cotangent)
    separate = _scan._run(gate, inputs, None, None, False)
    separate.backward(cotangent)
    assert torch.equal(packed, separate)
    assert torch.equal(x.grad, torch.cat([each.grad for each in inputs], 2))


def test_scans_of_views():
    """Tensors that are transposed, cut out of others at any address, or expanded."""

    def operation(scan):
        def run(a, b):
            a, b = a.transpose(0, 1), b[:, :, 3:]
            return scan(a, b), scan(a, b[:, :, :1].expand_as(b))

        return run

    a = torch.rand(70, 2, 12, dtype=torch.float64)
    tensors = [a, torch.randn(2, 70, 15, dtype=torch.float64)]
    reference.compare(moved(operation(rt.linear_scan)), operation(reference.scan), tensors, torch.float32, 70)


@pytest.mark.parametrize("hidden, dtype", [(32, torch.bfloat16), (11, torch.float32), (24, torch.float16)], ids=str)
@pytest.mark.parametrize("kind", test_cells.GATES)
def test_cells_against_formulas(kind, hidden, dtype):
    batch, steps = 5, 9
    reset, lengths = torch.rand(batch, steps) < 0.2, torch.tensor([9, 4, 0, 7, 1])
    tensors = test_cells.tensors(kind, batch, steps, 7, hidden)
    tensors = [x * (0.5 if x.dim() == 2 else 1.0) for x in tensors]
    for options in ((None, None, False), (reset, lengths, True)):
        there = (*map(marks, options[:2]), options[2])
        reference.compare(
            moved(test_cells.operation(kind, *there)),
            test_cells.formula(kind, *options),
            tensors,
            dtype,
            batch * steps * hidden,
        )


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_layers_against_those_of_pytorch(kind):
    theirs = getattr(torch.nn, kind)(8, 24, num_layers=2, bidirectional=True).to(DEVICE)
    ours = getattr(rt, kind)(8, 24, num_layers=2, bidirectional=True).to(DEVICE)
    ours.load_state_dict(theirs.state_dict())
    x = [torch.randn(steps, 8, device=DEVICE) for steps in (5, 11, 1)]
    packed = torch.nn.utils.rnn.pack_sequence(x, enforce_sorted=False)
    (y, last), (expected, expected_last) = ours(packed), theirs(packed)
    torch.testing.assert_close(y.data, expected.data, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(last, expected_last, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("steps, dtype", [(33, torch.float32), (200, torch.bfloat16), (200, torch.float16)], ids=str)
@pytest.mark.parametrize("_, decay, erase, operation", test_matrix_state.FORMS, ids=test_matrix_state.IDS)
def test_matrix_states(_, decay, erase, operation, steps, dtype):
    made = test_matrix_state.tensors(decay, erase, steps=steps, key=32, value=48, value_heads=4)
    reference.compare(
        moved(operation), test_matrix_state.naive(erase), list(made.values()), dtype, 64 * steps
    )


def test_matrix_states_of_sequences_in_one_row():
    made = test_matrix_state.tensors("head", batch=1, steps=150, key=16, value=16, sequences=3)
    here, there = ({name: x.float().to(device) for name, x in made.items()} for device in (DEVICE, "cpu"))
    bounds = torch.tensor([0, 70, 70, 150])
    results = []
    for tensors in (here, there):
        initial = tensors.pop("initial")
        options = {"initial_state": initial, "output_final_state": True}
        results.append(rt.chunk_gated_delta_rule(**tensors, **options, cu_seqlens=bounds.to(initial.device)))
    for found, expected in zip(*results):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="follow each other and end at 150"):
        rt.chunk_gated_delta_rule(**here, cu_seqlens=torch.tensor([0, 100], device=DEVICE))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows(dtype):
    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    made = [torch.randn(150, 67, dtype=torch.float64), torch.randn(67, dtype=torch.float64)]
    # Sums over channels or rows, and about ten roundings beside them, as on the CPU.
    reference.compare(moved(rt.rms_norm), norm, made, dtype, 150 + 10)
    logits, targets = (torch.randn(40, 333, device=DEVICE) * 3).to(dtype), torch.randint(0, 333, (40,), device=DEVICE)
    targets[[3, 17]] = -100
    results = []
    for kind, loss in ((dtype, rt.cross_entropy), (torch.float64, torch.nn.functional.cross_entropy)):
        leaf = logits.detach().to(kind, copy=True).requires_grad_()
        value = loss(leaf, targets)
        (2 * value).backward()
        results.append((value, leaf.grad))
    (loss, gradient), (expected, expected_gradient) = results
    assert loss.dtype == torch.float32 and abs(loss.item() - expected.item()) <= 1e-5
    limit = torch.finfo(dtype).eps * expected_gradient.abs().max() * 2 + 1e-7
    assert (gradient.double() - expected_gradient).abs().max() <= limit


def test_nothing():
    """Sizes of zero."""
    empty = torch.empty(2, 0, 8, device=DEVICE, requires_grad=True)
    h = rt.linear_scan(empty, empty)
    h.sum().backward()
    assert h.shape == empty.grad.shape == (2, 0, 8)
    assert rt.linear_scan(torch.empty(0, 5, 8, device=DEVICE), torch.empty(0, 5, 8, device=DEVICE)).shape == (0, 5, 8)
    y, last = rt.GRU(4, 8, batch_first=True).to(DEVICE)(torch.empty(2, 0, 4, device=DEVICE))
    assert y.shape == (2, 0, 8) and (last == 0).all()


def test_what_is_refused():
    a = torch.rand(2, 3, 8, device=DEVICE)
    with pytest.raises(ValueError, match="b: expected a tensor on cuda:0, as a is, found one on cpu"):
        rt.linear_scan(a, a.cpu())
    with pytest.raises(TypeError, match="float32, float16 or bfloat16 on a GPU, found float64"):
        rt.linear_scan(a.double(), a.double())
    with pytest.raises(ValueError, match="gate|channels"):
        rt.gated_scan(a[:, :, :7], "min-gru")


def step(layer, x):
    y = layer(x)[0]
    y.square().sum().backward()
    # Without its graph, whose nodes would stay on the stream of this call.
    return y.detach()


@pytest.mark.parametrize("kind", ["MinGRU", "GRU", "LSTM"])
def test_graphs(kind):
    """A training step in a CUDA graph has the bits of an eager one, for other inputs too."""
    options = {} if kind == "MinGRU" else {"batch_first": True}
    layer = getattr(rt, kind)(16, 32, **options).to(DEVICE)
    x = torch.randn(4, 200, 16, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(layer, x)
        layer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step(layer, x)
    recorded = [p.grad for p in layer.parameters()]
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(4, 200, 16))
        graph.replay()
        found = [y.clone(), *(d.clone() for d in recorded)]
        for p in layer.parameters():
            p.grad = None
        expected = [step(layer, x), *(p.grad for p in layer.parameters())]
        assert all(torch.equal(f, e) for f, e in zip(found, expected))


def test_a_first_call_inside_of_a_graph():
    a, b = torch.rand(3, 77, 40, device=DEVICE), torch.rand(3, 77, 40, device=DEVICE)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h = rt.linear_scan(a, b)
    graph.replay()
    assert torch.equal(h, rt.linear_scan(a, b))


def test_streams():
    """Work is ordered with the other work of the current stream, whichever that is."""
    expected = None
    for stream in [torch.cuda.Stream() for _ in range(4)]:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            a = torch.full((4, 300, 64), 0.5, device=DEVICE)
            h = rt.linear_scan(a, a)
            y, _ = rt.gru(h, a[0, :192], a[0, :192] * 0.01)
            total = (h.sum() + y.sum()).clone()
        stream.synchronize()
        expected = total if expected is None else expected
        assert torch.equal(total, expected)


def test_threads():
    layers = [rt.GRU(16, 64, batch_first=True).to(DEVICE) for _ in range(4)]
    x = torch.randn(8, 100, 16, device=DEVICE)
    with torch.no_grad():
        expected = [layer(x)[0] for layer in layers]
    wrong = []

    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                y = step(layers[index], x)
                torch.cuda.current_stream().synchronize()
                if not torch.equal(y, expected[index]):
                    wrong.append(index)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_returns():
    a = torch.rand(8, 256, 64, device=DEVICE, requires_grad=True)

    def once():
        rt.linear_scan(a, a).sum().backward()
        a.grad = None

    once()
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        once()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_autocast():
    layer = rt.GRU(8, 16, batch_first=True).to(DEVICE)
    x = torch.randn(2, 5, 8, device=DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        y, last = layer(x)
        h = rt.linear_scan(torch.sigmoid(x), x.bfloat16())
    assert y.dtype == last.dtype == h.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x)[0], rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert layer.weight_hh_l0.grad.dtype == torch.float32


def test_compile():
    torch._dynamo.reset()
    layers = torch.nn.Sequential(rt.MinGRU(8, 16)).to(DEVICE)
    gru = rt.GRU(16, 16, batch_first=True).to(DEVICE)
    weight = torch.ones(16, device=DEVICE)

    def model(x):
        return rt.rms_norm(gru(layers[0](x)[0])[0], weight).sum()

    x = torch.randn(2, 30, 8, device=DEVICE, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(model(x), x)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_verify_and_devices():
    machine = riverrun.devices()
    assert machine["gpus"] and machine["gpus"][0]["device"] == "cuda:0"
    rows = riverrun.verify(device="cuda:0")
    assert rows and all(row.passed for row in rows), [row for row in rows if not row.passed]
    assert rt.fault() is None


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_two_devices():
    """A call runs where its tensors are, whichever device is current."""
    a = torch.rand(2, 100, 16)
    expected = rt.linear_scan(a.to("cuda:0"), a.to("cuda:0")).cpu()
    assert torch.equal(rt.linear_scan(a.to("cuda:1"), a.to("cuda:1")).cpu(), expected)
    layer = rt.GRU(16, 32, batch_first=True).to("cuda:1")
    assert step(layer, a.to("cuda:1")).device.index == 1
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="found one on cuda:1"):
        rt.linear_scan(a.to("cuda:0"), a.to("cuda:1"))
