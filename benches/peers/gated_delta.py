"""A layer of Gated DeltaNet with the kernels of flash-linear-attention (FLA, `pip install flash-linear-attention einops`), as
riverrun's layer has it: one product for queries, keys and values, a short convolution with SiLU, the delta rule in chunks, a gated
RMSNorm of each head.

FLA 0.6 refuses its backward pass on Hopper with Triton 3.4.0 to 3.7.0, which compute wrong gradients there. `allow_wrong_gradients`
lets it run all the same: its time is that of a version that computes them right, its losses count for nothing.
"""

import torch
from torch import nn
from torch.nn import functional as F

HEAD = 128


class GatedDeltaNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        from fla.modules import FusedRMSNormGated, ShortConvolution
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        self.rule, self.heads, self.head = chunk_gated_delta_rule, width // HEAD, HEAD
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.convolution = ShortConvolution(3 * width, 4, activation="silu")
        self.rates = nn.Linear(width, 2 * self.heads, bias=False)
        self.a_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        step = torch.empty(self.heads).uniform_(1e-3, 1e-1)
        self.dt_bias = nn.Parameter(step + (-torch.expm1(-step)).log())
        self.gate = nn.Linear(width, width, bias=False)
        self.norm = FusedRMSNormGated(HEAD, eps=1e-6)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, steps, width = x.shape
        apart = lambda x: x.view(batch, steps, self.heads, self.head)
        q, k, v = map(apart, self.convolution(self.qkv(x))[0].chunk(3, -1))
        beta, a = self.rates(x).float().chunk(2, -1)
        g = -self.a_log.exp() * F.softplus(a + self.dt_bias)
        o = self.rule(q, k, v, g, beta.sigmoid().to(q.dtype), use_qk_l2norm_in_kernel=True)[0]
        return self.out(self.norm(o, apart(self.gate(x))).reshape(batch, steps, width))


def allow_wrong_gradients():
    """Makes FLA believe that its Triton is a right one."""
    import fla.ops.common.chunk_o as chunk_o

    chunk_o.TRITON_ABOVE_3_7_1 = True
