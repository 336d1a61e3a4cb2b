"""Watch Lightning's Trainer. A callback reports the steps.

python examples/watch/lightning_trainer.py
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from parabench import watch


class Watch(lightning.Callback):
    """Watch a trainer from its first to its last batch."""

    def __init__(self, **options: Any) -> None:
        self._options, self._on = options, contextlib.ExitStack()
        self._steps: Any = None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        # The module as wrapped by DDP, or sharded.
        called = trainer.strategy.model
        assert isinstance(called, nn.Module)
        self._steps = self._on.enter_context(watch(called, trainer.optimizers[0], **self._options))
        self._steps.batch_requested()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._steps.batch_received(batch)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._steps.batch_requested()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if self._steps is not None:  # Lightning also validates before the training
            self._steps.no_more_batches()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if self._steps is not None:
            self._steps.batch_requested()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._on.__exit__(type(exception), exception, exception.__traceback__)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._steps.no_more_batches()
        self._on.close()


class Digits(lightning.LightningModule):
    """A classifier of noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, pixels: Tensor) -> Tensor:
        scores: Tensor = self.layers(pixels)
        return scores

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        pixels, labels = batch
        return nn.functional.cross_entropy(self(pixels), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    """Train with `watch`."""
    torch.manual_seed(0)
    samples = int(os.environ.get("SAMPLES", "640"))
    data = TensorDataset(torch.randn(samples, 64), torch.randint(0, 10, (samples,)))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ.get("DEVICES", "1")),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Watch()],
    )
    trainer.fit(Digits(), DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()
