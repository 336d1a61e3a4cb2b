"""Benchmark SGD with two parameter groups, a learning rate warm-up, and clipped gradients.

parabench run strategies --model own_optimizer:factory --set strategy=ddp,fsdp,zero1 --set world_size=2
"""

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from parabench import Model


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noise, and the index of the largest of its first eight features."""
    inputs = torch.randn(n, 64, generator=generator)
    return inputs, inputs[:, :8].argmax(1)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD with weight decay for matrices, and without it for biases and norms."""
    decayed = [each for each in parameters if each.dim() > 1]
    others = [each for each in parameters if each.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)


def scheduler(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return a scheduler. parabench calls its `step()` after each optimizer step."""
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=100_000)


def factory() -> Model:
    """Return the model, with an optimizer instead of AdamW."""
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
    loss = nn.CrossEntropyLoss()
    return Model(module=net, loss=loss, batch=batch, optimizer=optimizer, scheduler=scheduler, clip_norm=0.5)
