"""Griffin in PyTorch, as `riverrun bench train --model griffin` has it: blocks of RMSNorm, mixing, residual, RMSNorm, a gated MLP
three times as wide, residual. Two of every three blocks mix by RG-LRU behind a convolution of four steps, the third by attention
over a window of half the steps (at most 1024), with rotary positions and one head of keys and values. The projection to the
vocabulary has the embedding's weights, padded so that the matrix units fit; logits are capped at 30.

RG-LRU is an operator of the gates' product, whose blocks lie as a batched product leaves them, of x, the gates' biases and the
rate of decay: `fused_scan.rg_lru`, or `rg_lru` here, which torch.compile makes into kernels.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

TAPS = 4
# The largest slope of the square root, as in the authors' code.
STEEPEST = 1000.0


def heads_of(width):
    """Heads of 64 channels, or of the next larger size that divides the width."""
    return next(heads for heads in range(max(1, width // 64), 0, -1) if width % heads == 0)


def padded(vocab):
    """Rows of the embedding: the vocabulary, or the next size that the matrix units like."""
    unit = 1 if vocab % 8 == 0 else 64 if vocab >= 1024 else 8
    return -(-vocab // unit) * unit


class Root(torch.autograd.Function):
    """`sqrt(1 - e^-2s)`, with a bound on the slope."""

    @staticmethod
    def forward(ctx, s):
        root = (-torch.expm1(-2 * s)).sqrt()
        ctx.save_for_backward(s, root)
        return root

    @staticmethod
    def backward(ctx, d_root):
        s, root = ctx.saved_tensors
        return d_root * (-2 * s).exp() * torch.clamp(1 / root, max=2 * STEEPEST)


def doubling(a, b):
    """`h_t = a_t h_{t-1} + b_t` from 0, over spans of steps that double."""
    reach, steps = 1, a.shape[1]
    while reach < steps:
        earlier = lambda x, value: F.pad(x[:, :-reach], (0, 0, reach, 0), value=value)
        b = b + a * earlier(b, 0.0)
        a = a * earlier(a, 1.0)
        reach *= 2
    return b


class Scan(torch.autograd.Function):
    """The recurrence, whose adjoint is the same recurrence in reverse."""

    @staticmethod
    def forward(ctx, a, b):
        h = doubling(a, b)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, d_h):
        a, h = ctx.saved_tensors
        later = F.pad(a[:, 1:], (0, 0, 0, 1))
        adjoint = doubling(later.flip(1), d_h.flip(1)).flip(1)
        return adjoint * F.pad(h[:, :-1], (0, 0, 1, 0)), adjoint


def rg_lru(gates, x, bias, rate):
    blocks, batch, steps, part = gates.shape
    pre = gates.float().view(blocks, batch, steps, 2, part // 2).permute(3, 1, 2, 0, 4).reshape(2, *x.shape)
    r, i = (pre + bias.float()[:, None, None]).sigmoid()
    s, u = rate * r, i * x.float()
    # The first step has no state before it and no factor.
    b = torch.cat([u[:, :1], Root.apply(s[:, 1:]) * u[:, 1:]], 1)
    return Scan.apply((-s).exp(), b).to(x.dtype)


class Recurrence(nn.Module):
    def __init__(self, width, blocks, operator):
        super().__init__()
        self.x, self.y, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.taps, self.taps_bias = nn.Parameter(torch.empty(TAPS, width).uniform_(-0.5, 0.5)), nn.Parameter(torch.zeros(width))
        bound = (blocks / width) ** 0.5
        self.gates = nn.Parameter(torch.empty(blocks, width // blocks, 2 * width // blocks).uniform_(-bound, bound))
        self.gates_bias = nn.Parameter(torch.empty(2, width).uniform_(-bound, bound))
        # Decays evenly over 0.9 to 0.999 where the gate is open.
        decays = 0.9 + 0.099 * (torch.arange(width) + 0.5) / width
        self.decay = nn.Parameter((-decays.log() / 8).expm1().log())
        self.operator = operator

    def convolve(self, x):
        taps, steps = self.taps.to(x.dtype), x.shape[1]
        ahead = F.pad(x, (0, 0, TAPS - 1, 0))
        return sum(ahead[:, k : k + steps] * taps[k] for k in range(TAPS)) + self.taps_bias.to(x.dtype)

    def forward(self, x):
        batch, steps, width = x.shape
        branch = self.convolve(self.x(x))
        blocks = len(self.gates)
        parts = branch.reshape(batch * steps, blocks, width // blocks).transpose(0, 1)
        gates = torch.bmm(parts, self.gates).view(blocks, batch, steps, -1)
        h = self.operator(gates, branch, self.gates_bias, 8 * F.softplus(self.decay))
        return self.out(F.gelu(self.y(x), approximate="tanh") * h)


class LocalAttention(nn.Module):
    def __init__(self, width, heads, steps, window):
        super().__init__()
        self.heads, self.dim, self.window = heads, width // heads, window
        self.qkv, self.out = nn.Linear(width, width + 2 * self.dim, bias=False), nn.Linear(width, width)
        self.turned = self.dim // 2 - self.dim // 2 % 2
        angles = torch.arange(steps)[:, None] * 10_000.0 ** (-2 * torch.arange(self.turned // 2) / self.turned)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.mask = None

    def prepare(self, device, steps):
        """The blocks of scores that the window leaves, before the compiler reads the model."""
        if self.window < steps and device.type == "cuda":
            window = self.window
            seen = lambda b, h, i, j: (i >= j) & (i - j < window)
            self.mask = create_block_mask(seen, None, None, steps, steps, device=device)

    def rotate(self, x):
        half = self.turned // 2
        a, b = x[..., :half].float(), x[..., half : 2 * half].float()
        turned = torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1).to(x.dtype)
        return torch.cat([turned, x[..., 2 * half :]], -1)

    def forward(self, x):
        batch, steps, width = x.shape
        q, k, v = self.qkv(x).split([width, self.dim, self.dim], -1)
        q, k, v = (t.view(batch, steps, -1, self.dim).transpose(1, 2) for t in (q, k, v))
        q, k = self.rotate(q), self.rotate(k)
        if self.mask is not None:
            y = flex_attention(q, k, v, block_mask=self.mask, enable_gqa=True)
        elif self.window >= steps:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            at = torch.arange(steps, device=x.device)
            apart = at[:, None] - at[None, :]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=(apart >= 0) & (apart < self.window), enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, steps, width))


class Block(nn.Module):
    def __init__(self, width, mixing):
        super().__init__()
        self.norm_mixing, self.mixing, self.norm_mlp = nn.RMSNorm(width, 1e-6), mixing, nn.RMSNorm(width, 1e-6)
        self.gate, self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        x = x + self.mixing(self.norm_mixing(x))
        n = self.norm_mlp(x)
        return x + self.down(F.gelu(self.gate(n), approximate="tanh") * self.up(n))


class Griffin(nn.Module):
    def __init__(self, width, layers, steps, vocab, operator):
        super().__init__()
        heads, window = heads_of(width), min(max(1, steps // 2), 1024)
        recurrence = lambda: Recurrence(width, heads, operator)
        attention = lambda: LocalAttention(width, heads, steps, window)
        self.embedding = nn.Embedding(padded(vocab), width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.blocks = nn.Sequential(*(Block(width, attention() if i % 3 == 2 else recurrence()) for i in range(layers)))
        self.norm, self.scale = nn.RMSNorm(width, 1e-6), width**0.5

    def prepare(self, device, steps):
        for block in self.blocks:
            if isinstance(block.mixing, LocalAttention):
                block.mixing.prepare(device, steps)

    def forward(self, tokens, targets):
        """The loss too, so that the compiler has it whole."""
        x = self.norm(self.blocks(self.scale * self.embedding(tokens)))
        logits = 30 * torch.tanh(F.linear(x, self.embedding.weight).float() / 30)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def check(device, operator):
    """Holds a form of RG-LRU against a loop in float64; an error ends the run before anything is timed."""
    blocks, batch, steps, part = 2, 3, 37, 20
    dim = blocks * part
    draw = lambda *shape: torch.randn(shape, device=device, requires_grad=True)
    gates, x, bias = draw(blocks, batch, steps, 2 * part), draw(batch, steps, dim), draw(2, dim)
    # Decays from 0.999 to 0.1 a step where the gate is open.
    rate = torch.logspace(-3, 0.36, dim, device=device).requires_grad_()
    inputs = [gates, x, bias, rate]
    exact = [y.detach().double().requires_grad_() for y in inputs]
    gate = exact[0].view(blocks, batch, steps, 2, part).permute(3, 1, 2, 0, 4).reshape(2, batch, steps, dim)
    r, i = (gate + exact[2][:, None, None]).sigmoid()
    state, states = torch.zeros(batch, dim, device=device, dtype=torch.float64), []
    for t in range(steps):
        a = (-exact[3] * r[:, t]).exp()
        u = i[:, t] * exact[1][:, t]
        state = a * state + (1 - a * a).sqrt() * u if t else u
        states.append(state)
    expected, found = torch.stack(states, 1), operator(*inputs)
    weight = torch.randn_like(found)
    pairs = [(found.double(), expected)]
    pairs += zip(torch.autograd.grad((found * weight).sum(), inputs), torch.autograd.grad((expected * weight).sum(), exact))
    for name, (found, expected) in zip(("states", "gates", "x", "bias", "rate"), pairs):
        error = ((found.double() - expected).norm() / expected.norm()).item()
        assert error < 1e-5, f"the RG-LRU is wrong: {name}, {error}"
