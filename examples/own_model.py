"""Benchmark your own model: a plain nn.Module, followed by the two functions that parabench needs.

parabench run strategies --model own_model:factory --set strategy=ddp,fsdp --set world_size=2
"""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A classifier of 64 features."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(64, 128)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4))
        self.outside = nn.Linear(128, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 8)."""
        x = self.inside(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.outside(x)


# --- for parabench ---
from parabench import Model  # noqa: E402 - here, to show everything that parabench needs


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noise, and the index of the largest of its first eight features."""
    inputs = torch.randn(n, 64, generator=generator)
    return inputs, inputs[:, :8].argmax(1)


def factory() -> Model:
    """Return the module, its loss and data, and its blocks, which FSDP shards one by one."""
    net = Net()
    return Model(module=net, loss=nn.CrossEntropyLoss(), batch=batch, blocks=list(net.layers))
