"""A GPT-2 style decoder: pre-norm blocks, causal attention, GELU, tied embeddings.

Shapes, initialisation and the tied head follow GPT-2 (Radford et al., 2019); no dropout, so that every way of
parallelising computes the same numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F  # noqa: N812 - its usual name

from parabench.models import GPTShape
from parabench.models.model import Model


class Attention(nn.Module):
    """Causal self-attention. The fused projection is laid out head by head, so that its rows split over ranks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same shape."""
        batch, time, _ = x.shape
        # Under tensor parallel this rank holds some of the heads, hence -1.
        q, k, v = self.qkv(x).view(batch, time, -1, 3, self.head_width).unbind(3)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, time, -1))
        return out


class Block(nn.Module):
    """Attention, then an MLP of four times the width, each behind a norm and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same shape."""
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        out: Tensor = x + self.down(hidden)
        return out


class GPT(nn.Module):
    """Tokens (batch, time) to logits (batch, time, vocabulary)."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self._initialise(shape.layers)

    def _initialise(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                # Projections onto the residual stream are smaller, by the number of additions to it.
                residual = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for the token that follows each position."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 whatever the logits' type."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def gpt(shape: GPTShape) -> Model:
    """The reference model of the given shape, initialised from torch's current seed."""
    module = GPT(shape)
    return Model(
        module=module,
        loss=next_token_loss,
        vocabulary=shape.vocabulary,
        blocks=list(module.blocks),
        tensor_parallel={
            "attention.qkv": ColwiseParallel(),
            "attention.out": RowwiseParallel(),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(),
        },
    )
