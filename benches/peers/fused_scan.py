"""minGRU's recurrence as one Triton kernel each way, an operator that torch.compile and CUDA graphs take whole.

The best that PyTorch can do by hand: each program owns a block of channels of one sequence, walks through time with the state in
registers, and reads its two pre-activations once; loads run ahead of the arithmetic by Triton's software pipelining, whose depth
and block are tuned for each shape. Pre-activations lie side by side: candidate, then gate, `[B, T, 2 D]`; states are `[B, T, D]`.
"""

import torch
import triton
import triton.language as tl

TUNINGS = [
    triton.Config({"WIDTH": width, "AHEAD": ahead}, num_warps=warps)
    for width, warps in ((32, 1), (64, 1), (128, 1), (128, 2), (256, 4))
    for ahead in (4, 8)
]


@triton.jit
def gate_and_candidate(x_row, dim, channel, inside):
    v = tl.load(x_row + channel, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(x_row + dim + channel, mask=inside, other=0.0).to(tl.float32)
    return tl.sigmoid(k), v, tl.sigmoid(v)


@triton.autotune(TUNINGS, key=["steps", "dim"])
@triton.jit
def forward_kernel(x, h, steps, dim, WIDTH: tl.constexpr, AHEAD: tl.constexpr):
    blocks = tl.cdiv(dim, WIDTH)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * WIDTH + tl.arange(0, WIDTH)
    inside = channel < dim
    state = tl.zeros([WIDTH], tl.float32)
    for t in tl.range(0, steps, num_stages=AHEAD):
        row = sequence * steps + t
        z, v, s = gate_and_candidate(x + row * 2 * dim, dim, channel, inside)
        state += z * (tl.where(v >= 0, v + 0.5, s) - state)
        tl.store(h + row * dim + channel, state.to(h.dtype.element_ty), mask=inside)


@triton.autotune(TUNINGS, key=["steps", "dim"])
@triton.jit
def backward_kernel(x, h, d_h, d_x, steps, dim, WIDTH: tl.constexpr, AHEAD: tl.constexpr):
    blocks = tl.cdiv(dim, WIDTH)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * WIDTH + tl.arange(0, WIDTH)
    inside = channel < dim
    adjoint = tl.zeros([WIDTH], tl.float32)
    for back in tl.range(0, steps, num_stages=AHEAD):
        t = steps - 1 - back
        row = sequence * steps + t
        z, v, s = gate_and_candidate(x + row * 2 * dim, dim, channel, inside)
        before = tl.load(h + (row - 1) * dim + channel, mask=inside & (t > 0), other=0.0).to(tl.float32)
        adjoint += tl.load(d_h + row * dim + channel, mask=inside, other=0.0).to(tl.float32)
        d_v = adjoint * z * tl.where(v >= 0, 1.0, s * (1 - s))
        d_k = adjoint * (tl.where(v >= 0, v + 0.5, s) - before) * z * (1 - z)
        out = d_x + row * 2 * dim + channel
        tl.store(out, d_v.to(d_x.dtype.element_ty), mask=inside)
        tl.store(out + dim, d_k.to(d_x.dtype.element_ty), mask=inside)
        adjoint *= 1 - z


def grid(batch, dim):
    return lambda tuning: (batch * triton.cdiv(dim, tuning["WIDTH"]),)


@torch.library.custom_op("riverrun_peers::min_gru", mutates_args=())
def min_gru(x: torch.Tensor) -> torch.Tensor:
    batch, steps, width = x.shape
    x, h = x.contiguous(), x.new_empty(batch, steps, width // 2)
    forward_kernel[grid(batch, width // 2)](x, h, steps, width // 2)
    return h


@torch.library.custom_op("riverrun_peers::min_gru_backward", mutates_args=())
def min_gru_backward(x: torch.Tensor, h: torch.Tensor, d_h: torch.Tensor) -> torch.Tensor:
    batch, steps, dim = h.shape
    x, d_h = x.contiguous(), d_h.contiguous()
    d_x = torch.empty_like(x)
    backward_kernel[grid(batch, dim)](x, h, d_h, d_x, steps, dim)
    return d_x


min_gru.register_fake(lambda x: x.new_empty(x.shape[0], x.shape[1], x.shape[2] // 2))
min_gru_backward.register_fake(lambda x, h, d_h: x.new_empty(x.shape))
# PyTorch passes the arguments of `setup_context` by these names.
min_gru.register_autograd(
    lambda ctx, d_h: min_gru_backward(*ctx.saved_tensors, d_h),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output),
)


def check(device):
    """Holds the kernels against a loop in float64; an error ends the run before anything is timed."""
    x = torch.randn(3, 37, 80, device=device, requires_grad=True)
    weight = torch.randn(3, 37, 40, device=device)
    v, k = x.double().chunk(2, dim=-1)
    z, g = k.sigmoid(), torch.where(v >= 0, v + 0.5, v.sigmoid())
    state, states = torch.zeros_like(z[:, 0]), []
    for t in range(37):
        state = state + z[:, t] * (g[:, t] - state)
        states.append(state)
    expected = torch.stack(states, 1)
    found = min_gru(x)
    pairs = [(found.double(), expected)]
    pairs.append([torch.autograd.grad((h * weight).sum(), x)[0].double() for h in (found, expected)])
    for found, expected in pairs:
        error = ((found - expected).norm() / expected.norm()).item()
        assert error < 1e-5, f"the fused scan is wrong: {error}"
