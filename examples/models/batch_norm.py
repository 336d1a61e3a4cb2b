"""Benchmark a network with BatchNorm and dropout, verified with `same_split`.

parabench run strategies --model batch_norm:factory --set strategy=ddp,fsdp --set world_size=2
"""

import torch
from torch import Tensor, nn

from parabench import Model


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return small pictures. The class of a picture is the brightest color in one corner."""
    images = torch.randn(n, 3, 8, 8, generator=generator)
    return images, images[:, :, 0, 0].argmax(1)


def convolution(before: int, after: int) -> nn.Sequential:
    """Return a convolution with BatchNorm."""
    return nn.Sequential(nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def factory() -> Model:
    """Return the model. Statistics of half a batch differ from the whole batch, so it needs `same_split`."""
    end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 3))
    net = nn.Sequential(convolution(3, 16), convolution(16, 16), end)
    return Model(module=net, loss=nn.CrossEntropyLoss(), batch=batch, blocks=[*net], verification="same_split")
