"""Define the reference models: a decoder like GPT-2 (Radford et al., 2019), `mlp`, `mnist` and `toy`.

They do not have dropout, so that all strategies compute the same numbers.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import functional as F  # noqa: N812 - its usual name

from parabench.models import MLP_CLASSES, MLP_HIDDEN, MLP_WIDTH, ModelEntry
from parabench.models.base import Model, at_least_float32
from parabench.models.batches import count_up
from parabench.plan.case import Case

# The standard deviation of initial weights in GPT-2.
STD = 0.02


class Linear(nn.Linear):
    """A linear layer with GPT-2's initialization."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=STD)
        nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """An embedding with GPT-2's initialization."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=STD)


class Attention(nn.Module):
    """Causal self-attention. The rows of `qkv` are ordered by head, so that ranks can split them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, _ = x.shape
        # With tensor parallel, this rank has only some of the heads (-1).
        q, k, v = self.qkv(x).view(batch, time, -1, 3, self.head_width).unbind(3)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, time, -1))
        return out


class Block(nn.Module):
    """A transformer block: attention and an MLP of four times the width, each with a norm and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = Linear(width, 4 * width)
        self.down = Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        out: Tensor = x + self.down(hidden)
        return out


class Stem(nn.Module):
    """Token and position embeddings, mapping (batch, time) to (batch, time, width)."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = Embedding(vocabulary, width)
        self.positions = Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return x


class Head(nn.Module):
    """The final norm, and the projection to the vocabulary with the weight of the token embedding."""

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(tokens.embedding_dim)
        self.out = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False, device="meta")
        self.out.weight = tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to (batch, time, vocabulary)."""
        logits: Tensor = self.out(self.norm(x))
        return logits


class GPT(nn.Module):
    """A decoder like GPT-2, mapping tokens (batch, time) to logits (batch, time, vocabulary)."""

    def __init__(self, layers: int, heads: int, width: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.stem = Stem(vocabulary, context, width)
        blocks = [Block(width, heads) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.head = Head(self.stem.tokens)
        # Projections onto the residual stream are scaled by the number of additions to it.
        with torch.no_grad():
            for block in blocks:
                block.attention.out.weight.div_(math.sqrt(2 * layers))
                block.down.weight.div_(math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits for the token after each position."""
        x = self.stem(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens in nats, in float32 or wider."""
    return F.cross_entropy(at_least_float32(logits.flatten(0, 1)), targets.flatten())


def gpt(entry: ModelEntry, case: Case) -> Model:
    """Return the decoder with the shape of `entry`, initialized from torch's current seed."""
    assert entry.heads is not None
    assert entry.width is not None
    assert entry.vocabulary is not None
    assert entry.context is not None
    vocabulary = entry.vocabulary
    module = GPT(entry.blocks, entry.heads, entry.width, vocabulary, entry.context)

    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = count_up(n, case.seq_len + 1, vocabulary, generator)
        return tokens[:, :-1], tokens[:, 1:]

    return Model(
        module=module,
        loss=next_token_loss,
        batch=batch,
        vocabulary=vocabulary,
        blocks=list(module.blocks),
        stem=module.stem,
        head=module.head,
        tensor_parallel={
            "blocks.*.attention.qkv": ColwiseParallel(),
            "blocks.*.attention.out": RowwiseParallel(),
            "blocks.*.up": ColwiseParallel(),
            "blocks.*.down": RowwiseParallel(),
        },
        # Between the layers, each rank has a part of the sequence: the stem's output is split, the head's input whole
        sequence_parallel={
            "stem": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
            "blocks.*.norm1": SequenceParallel(),
            "blocks.*.attention.qkv": ColwiseParallel(input_layouts=Shard(1)),
            "blocks.*.attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "blocks.*.norm2": SequenceParallel(),
            "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
            "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
            "head.norm": SequenceParallel(),
            "head.out": PrepareModuleInput(
                input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
            ),
        },
    )


# Szegedy et al., "Rethinking the Inception architecture", 2016. With smoothing, the loss stays well above zero.
# Relative to a loss near zero, verification would compare only rounding.
LABEL_SMOOTHING = 0.1

# The height and width of MNIST's images, and the number of digits.
SIDE, CLASSES = 28, 10


class Pair(nn.Module):
    """Two linear layers with a residual. Tensor parallel splits the first by columns, the second by rows."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        # GELU is smooth. With ReLU, a different order of summation could give a different gradient.
        out: Tensor = x + self.down(F.gelu(self.up(x)))
        return out


def class_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats with smoothed labels, in float32 or wider."""
    return F.cross_entropy(at_least_float32(logits), targets, label_smoothing=LABEL_SMOOTHING)


def mlp(entry: ModelEntry, case: Case) -> Model:
    """Return a perceptron: a first layer, residual pairs of linear layers, and a head.

    It maps features (batch, features) to logits (batch, classes). It supports all splits of data, because its first
    layer can be split by features.
    """
    features = entry.features
    assert features is not None
    first = nn.Linear(features, MLP_WIDTH)
    blocks = nn.Sequential(*(Pair(MLP_WIDTH, MLP_HIDDEN) for _ in range(entry.blocks)))
    head = nn.Linear(MLP_WIDTH, MLP_CLASSES)
    module = nn.Sequential(OrderedDict(first=first, blocks=blocks, head=head))

    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return noise, with higher values in the group of features of the class."""
        inputs = torch.randn(n, features, generator=generator, device="cpu")
        classes = torch.randint(MLP_CLASSES, (n,), generator=generator, device="cpu")
        inputs.view(n, MLP_CLASSES, -1)[torch.arange(n, device="cpu"), classes] += 1
        return inputs, classes

    return Model(
        module=module,
        loss=class_loss,
        batch=batch,
        blocks=list(blocks),
        stem=first,
        head=head,
        tensor_parallel={
            "first": RowwiseParallel(input_layouts=Replicate()),
            "blocks.*.up": ColwiseParallel(),
            "blocks.*.down": RowwiseParallel(),
        },
        first="first",
    )


def mnist(entry: ModelEntry, case: Case) -> Model:
    """Return a net for images (batch, 1, 28, 28) and logits (batch, 10).

    It is https://github.com/pytorch/examples/blob/main/mnist/main.py without dropout.
    """
    module = nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU()),
            conv2=nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            fc1=nn.Sequential(nn.Linear(9216, 128), nn.ReLU()),
            fc2=nn.Linear(128, CLASSES),
        )
    )

    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return noise with a bright stripe at the height of the digit."""
        images = torch.randn(n, 1, SIDE, SIDE, generator=generator, device="cpu")
        digits = torch.randint(CLASSES, (n,), generator=generator, device="cpu")
        images[torch.arange(n, device="cpu"), 0, 2 * digits + 4] += 2
        return images, digits

    return Model(
        module=module,
        loss=class_loss,
        batch=batch,
        blocks=list(module),
        tensor_parallel={"fc1.0": ColwiseParallel(), "fc2": RowwiseParallel()},
    )


def toy(entry: ModelEntry, case: Case) -> Model:
    """Return a net with 10-10-1 neurons and ReLU, for features (batch, 10) and a number (batch, 1)."""
    module = nn.Sequential(nn.Sequential(nn.Linear(10, 10), nn.ReLU()), nn.Linear(10, 1))

    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return numbers from 0 to 1, and their mean plus 4, so that the loss falls with each batch."""
        inputs = torch.rand(n, 10, generator=generator, device="cpu")
        return inputs, inputs.mean(1, keepdim=True) + 4

    return Model(
        module=module,
        loss=lambda output, targets: F.mse_loss(at_least_float32(output), targets),
        batch=batch,
        blocks=list(module),
        tensor_parallel={"0.0": ColwiseParallel(), "1": RowwiseParallel()},
    )
