"""The recurrences of minGRU and of RG-LRU as one Triton kernel each way, operators that torch.compile and CUDA graphs take whole.

The best that PyTorch can do by hand: each program owns a block of channels of one sequence, walks through time with the state in
registers, and reads its pre-activations once; loads run ahead of the arithmetic by Triton's software pipelining, whose depth
and block are tuned for each shape. minGRU's pre-activations lie side by side: candidate, then gate, `[B, T, 2 D]`; states are
`[B, T, D]`.
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


# RG-LRU, with the blocks of its gates as their product leaves them: `[G, B, T, 2 P]`, recurrence beside input, G P = D. Their
# biases `[2, D]` are added here, and the sums over time of the gradients of biases and rates stay in registers. A program's channels
# lie within one block, so that its loads are contiguous.

# The largest slope of the square root, as in the authors' code.
STEEPEST = tl.constexpr(1000.0)


@triton.jit
def decay_and_root(rates):
    """`e^-s` and `sqrt(1 - e^-2s)`, the latter by a series where the difference would cancel."""
    decay = tl.exp(-rates)
    s = 2 * rates
    near = s * (1 - s / 2 * (1 - s / 3 * (1 - s / 4 * (1 - s / 5))))
    return decay, tl.sqrt(tl.where(s < 0.1, near, 1 - decay * decay))


@triton.jit
def place(dim, part, WIDTH: tl.constexpr):
    """A program's sequence, its block of the gates, and its channels within that."""
    tiles = tl.cdiv(part, WIDTH)
    each = dim // part * tiles
    program = tl.program_id(0)
    block = (program % each // tiles).to(tl.int64)
    return (program // each).to(tl.int64), block, program % tiles * WIDTH + tl.arange(0, WIDTH)


@triton.autotune(TUNINGS, key=["steps", "dim", "part"])
@triton.jit
def rg_lru_forward_kernel(gates, x, bias, rate, h, rows, steps, dim, part, WIDTH: tl.constexpr, AHEAD: tl.constexpr):
    sequence, block, within = place(dim, part, WIDTH)
    channel, inside = block * part + within, within < part
    gate = gates + block * rows * 2 * part + within
    bias_r = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    bias_i = tl.load(bias + dim + channel, mask=inside, other=0.0).to(tl.float32)
    speed = tl.load(rate + channel, mask=inside, other=0.0).to(tl.float32)
    state = tl.zeros([WIDTH], tl.float32)
    for t in tl.range(0, steps, num_stages=AHEAD):
        row = sequence * steps + t
        r = tl.sigmoid(tl.load(gate + row * 2 * part, mask=inside, other=0.0).to(tl.float32) + bias_r)
        i = tl.sigmoid(tl.load(gate + row * 2 * part + part, mask=inside, other=0.0).to(tl.float32) + bias_i)
        u = i * tl.load(x + row * dim + channel, mask=inside, other=0.0).to(tl.float32)
        decay, root = decay_and_root(speed * r)
        state = decay * state + tl.where(t == 0, 1.0, root) * u
        tl.store(h + row * dim + channel, state.to(h.dtype.element_ty), mask=inside)


@triton.autotune(TUNINGS, key=["steps", "dim", "part"])
@triton.jit
def rg_lru_backward_kernel(
    gates, x, bias, rate, h, d_h, d_gates, d_x, d_sums, rows, steps, dim, part, WIDTH: tl.constexpr, AHEAD: tl.constexpr
):
    sequence, block, within = place(dim, part, WIDTH)
    channel, inside = block * part + within, within < part
    to_gate = block * rows * 2 * part + within
    bias_r = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    bias_i = tl.load(bias + dim + channel, mask=inside, other=0.0).to(tl.float32)
    speed = tl.load(rate + channel, mask=inside, other=0.0).to(tl.float32)
    adjoint = tl.zeros([WIDTH], tl.float32)
    sum_r, sum_i, sum_speed = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for back in tl.range(0, steps, num_stages=AHEAD):
        t = steps - 1 - back
        row = sequence * steps + t
        r = tl.sigmoid(tl.load(gates + to_gate + row * 2 * part, mask=inside, other=0.0).to(tl.float32) + bias_r)
        i = tl.sigmoid(tl.load(gates + to_gate + row * 2 * part + part, mask=inside, other=0.0).to(tl.float32) + bias_i)
        value = tl.load(x + row * dim + channel, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(h + (row - 1) * dim + channel, mask=inside & (t > 0), other=0.0).to(tl.float32)
        adjoint += tl.load(d_h + row * dim + channel, mask=inside, other=0.0).to(tl.float32)
        decay, root = decay_and_root(speed * r)
        d_u = adjoint * tl.where(t == 0, 1.0, root)
        # The first step has neither a state before it nor the root.
        slope = tl.where(t == 0, 0.0, tl.minimum(1 / tl.maximum(root, 1e-20), 2 * STEEPEST))
        d_rates = adjoint * decay * (decay * slope * i * value - before)
        d_r = d_rates * speed * r * (1 - r)
        d_i = d_u * value * i * (1 - i)
        sum_speed += d_rates * r
        sum_r += d_r
        sum_i += d_i
        out = d_gates + to_gate + row * 2 * part
        tl.store(out, d_r.to(d_gates.dtype.element_ty), mask=inside)
        tl.store(out + part, d_i.to(d_gates.dtype.element_ty), mask=inside)
        tl.store(d_x + row * dim + channel, (d_u * i).to(d_x.dtype.element_ty), mask=inside)
        adjoint *= decay
    out = d_sums + sequence * 3 * dim + channel
    tl.store(out, sum_r, mask=inside)
    tl.store(out + dim, sum_i, mask=inside)
    tl.store(out + 2 * dim, sum_speed, mask=inside)


@torch.library.custom_op("riverrun_peers::rg_lru", mutates_args=())
def rg_lru(gates: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    batch, steps, dim = x.shape
    gates, x, bias = gates.contiguous(), x.contiguous(), bias.contiguous()
    h = torch.empty_like(x)
    part = dim // len(gates)
    rg_lru_forward_kernel[grid(batch * len(gates), part)](gates, x, bias, rate, h, batch * steps, steps, dim, part)
    return h


@torch.library.custom_op("riverrun_peers::rg_lru_backward", mutates_args=())
def rg_lru_backward(
    gates: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, rate: torch.Tensor, h: torch.Tensor, d_h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the gates and of x, and for each sequence those of the biases and of the rate, `[B, 3, D]`."""
    batch, steps, dim = x.shape
    gates, x, bias, d_h = gates.contiguous(), x.contiguous(), bias.contiguous(), d_h.contiguous()
    d_gates, d_x, d_sums = torch.empty_like(gates), torch.empty_like(x), rate.new_empty(batch, 3, dim, dtype=torch.float32)
    part = dim // len(gates)
    call = rg_lru_backward_kernel[grid(batch * len(gates), part)]
    call(gates, x, bias, rate, h, d_h, d_gates, d_x, d_sums, batch * steps, steps, dim, part)
    return d_gates, d_x, d_sums


def rg_lru_gradients(ctx, d_h):
    gates, x, bias, rate, h = ctx.saved_tensors
    d_gates, d_x, d_sums = rg_lru_backward(gates, x, bias, rate, h, d_h)
    d_sums = d_sums.sum(0)
    return d_gates, d_x, d_sums[:2].to(bias.dtype), d_sums[2].to(rate.dtype)


rg_lru.register_fake(lambda gates, x, bias, rate: x.new_empty(x.shape))
rg_lru_backward.register_fake(
    lambda gates, x, bias, rate, h, d_h: (
        gates.new_empty(gates.shape),
        x.new_empty(x.shape),
        rate.new_empty(x.shape[0], 3, x.shape[2], dtype=torch.float32),
    )
)
rg_lru.register_autograd(
    rg_lru_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output)
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
