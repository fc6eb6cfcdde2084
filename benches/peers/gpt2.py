"""GPT-2 in PyTorch, as `riverrun bench train --model gpt2` has it: embeddings of tokens and of positions, blocks of LayerNorm,
causal attention with heads of 64 channels, residual, LayerNorm, an MLP four times as wide with tanh-GELU, residual. The
projection to the vocabulary has the embedding's weights, padded so that the matrix units fit.
"""

import torch
from torch import nn
from torch.nn import functional as F

from griffin import heads_of, padded

STD = 0.02


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = heads_of(width)
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, steps, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, steps, width))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, width, layers, steps, vocab):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(padded(vocab), width), nn.Embedding(steps, width)
        self.blocks, self.norm = nn.Sequential(*(Block(width) for _ in range(layers))), nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=STD / (2 * layers) ** 0.5 if last else STD)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens, targets):
        """The loss too, so that the compiler has it whole."""
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions.weight))
        logits = F.linear(x, self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
