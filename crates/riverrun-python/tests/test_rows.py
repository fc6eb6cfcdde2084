import pytest
import reference
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.library import opcheck

import riverrun.torch as rt

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (3, 2), (130, 37), (2, 3, 64)], ids=str)
def test_rms_norm(shape, dtype):
    made = [torch.randn(shape, dtype=torch.float64), torch.randn(shape[-1], dtype=torch.float64)]

    def formula(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight

    rows = made[0].numel() // shape[-1]
    # Sums over channels or rows, and about ten roundings beside them.
    reference.compare(lambda *x: rt.rms_norm(*x, 1e-5), formula, made, dtype, max(rows, shape[-1]) + 10)


def test_rms_norm_of_one_channel():
    x = torch.tensor([[2.0], [-3.0], [0.5]], dtype=torch.float64, requires_grad=True)
    y = rt.rms_norm(x, torch.tensor([4.0], dtype=torch.float64), 0.0)
    torch.testing.assert_close(y.detach(), torch.tensor([[4.0], [-4.0], [4.0]], dtype=torch.float64), rtol=1e-15, atol=0)
    y.sum().backward()
    # The gradient is a difference of equal terms of the size of 4 / 0.5.
    assert x.grad.abs().max() <= 8 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cross_entropy(dtype):
    logits = torch.randn(40, 333, dtype=torch.float64)
    targets = torch.randint(0, 333, (40,))
    targets[[3, 17]] = -100
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = logits.to(dtype).requires_grad_()
    loss = rt.cross_entropy(x, targets)
    assert loss.dtype == wide and loss.shape == ()
    (2 * loss).backward()
    for kind, naive in ((torch.float64, False), (dtype, True)):
        leaf = logits.to(dtype).to(kind).requires_grad_()
        expected = F.cross_entropy(leaf, targets)
        (2 * expected).backward()
        if naive:
            naive_loss, naive_grad = expected.detach(), leaf.grad
        else:
            true_loss, true_grad = expected.detach(), leaf.grad
    reference.judge("loss", loss.detach(), naive_loss, true_loss, 333)
    reference.judge("gradient", x.grad, naive_grad, true_grad, 333)


def test_shapes_and_targets_of_cross_entropy():
    logits = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (2, 5))
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(rt.cross_entropy(logits, targets), expected)
    torch.testing.assert_close(rt.cross_entropy(logits, targets.int()), expected)
    ignored = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=3)
    torch.testing.assert_close(rt.cross_entropy(logits, targets, ignore_index=3), ignored)
    assert rt.cross_entropy(logits, torch.full_like(targets, -100)).isnan()
    assert rt.cross_entropy(logits[:0], targets[:0]).isnan()
    with pytest.raises(ValueError, match="the target of row 1 is 7, with logits of 7 classes"):
        rt.cross_entropy(logits[0], torch.tensor([0, 7, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"targets: expected shape \[2, 5\], found \[2, 4\]"):
        rt.cross_entropy(logits, targets[:, :4])


def test_gradcheck_and_opcheck():
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([1, 5, -1, 0])
    assert gradcheck(rt.rms_norm, (x, weight))
    assert gradcheck(lambda x: rt.cross_entropy(x, targets), (x,))
    ops = torch.ops.riverrun
    opcheck(ops.rms_norm.default, (x, weight, 1e-6))
    opcheck(ops.rms_norm_backward.default, (x.detach(), weight.detach(), 1e-6, torch.randn_like(x)))
    opcheck(ops.cross_entropy.default, (x, targets))
    _, lse, scale = ops.cross_entropy(x.detach(), targets)
    opcheck(ops.cross_entropy_backward.default, (x.detach(), targets, lse, scale))


def test_layouts_and_empty_tensors_of_rms_norm():
    x, weight = torch.randn(6, 5), torch.randn(10)[::2]
    assert torch.equal(rt.rms_norm(x.T.contiguous().T, weight), rt.rms_norm(x, weight.contiguous()))
    empty = torch.zeros(0, 5, requires_grad=True)
    y = rt.rms_norm(empty, weight.clone().requires_grad_())
    assert y.shape == (0, 5)
    y.sum().backward()
    with pytest.raises(ValueError, match=r"x: expected shape \[..., 5\] for a weight of \[5\], found \[5, 6\]"):
        rt.rms_norm(x.T, weight)
    with pytest.raises(ValueError, match="weight: expected dtype float32, found float64"):
        rt.rms_norm(x, weight.double())
