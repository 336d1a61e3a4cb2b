"""Timed models whose layers are unlike, for which a list of DDP's bucket caps may beat every single cap.

    parabench run strategies --model benchmarks.foresight.unlike_models:heavy_back --data synthetic

In a model of like layers a bucket a layer is the best of all lists. Where the layers whose gradients are ready first
take long and hold little, and those after them are quick, small buckets begin to send early, and few large ones then
send the rest, which no single cap does.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from benchmarks.foresight.timed_model import WIDTH, MeanHead, batch, timed
from parabench import Model

# Of a row of a weight in float32.
ROW_KIB = WIDTH * 4 // 1024


@dataclass(frozen=True, slots=True)
class Layers:
    """A part of a model: weights of so many KiB each, and how many seconds a sample takes forward and backward."""

    kib: tuple[int, ...]
    forward_s: float
    backward_s: float


# In the order of forward; gradients are ready from the last to the first.
# 1 MiB is ready while 20 ms pass, then 7 MiB at once.
HEAVY_BACK = (
    *(Layers((256,), 0.0001, 0.0001) for _ in range(28)),
    *(Layers((64,), 0.0005, 0.0012) for _ in range(16)),
)
# The same with an embedding whose gradient is ready last of all.
EMBEDDING_FRONT = (Layers((2048,), 0.0002, 0.0005), *HEAVY_BACK[8:])
# As a GPT of 128 features and 8192 tokens: an embedding, blocks of four matrices, and a head that is not tied to it.
GPT = (
    Layers((4096,), 0.0005, 0.001),
    *(Layers((192, 64, 256, 256), 0.003, 0.006) for _ in range(8)),
    Layers((4096,), 0.002, 0.004),
)


class UnlikePart(nn.Module):
    """Adds to each feature the mean of what its weights make of all: little arithmetic for many parameters."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.layers = layers
        self.weights = nn.ModuleList(nn.Linear(WIDTH, kib // ROW_KIB, bias=False) for kib in layers.kib)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, TOKENS, WIDTH) to the same shape."""
        mean = x.mean(1, keepdim=True)
        for weight in self.weights:
            x = x + weight(mean).mean(2, keepdim=True)
        return timed(x, self.layers.forward_s, self.layers.backward_s)


class UnlikeNet(nn.Module):
    """Parts one after the other, and logits of them."""

    def __init__(self, parts: tuple[Layers, ...]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(UnlikePart(each) for each in parts))
        self.head = MeanHead()

    def forward(self, x: Tensor) -> Tensor:
        """Features (batch, TOKENS, WIDTH) to logits (batch, CLASSES)."""
        logits: Tensor = self.head(self.blocks(x))
        return logits


def heavy_back() -> Model:
    """Small slow layers at the end, quick ones before them."""
    return _model(HEAVY_BACK)


def embedding_front() -> Model:
    """The same with an embedding at the front."""
    return _model(EMBEDDING_FRONT)


def gpt() -> Model:
    """A large embedding and a large head, like blocks between."""
    return _model(GPT)


def _model(parts: tuple[Layers, ...]) -> Model:
    net = UnlikeNet(parts)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Model(module=net, loss=loss, batch=batch, blocks=list(net.blocks), head=net.head)
