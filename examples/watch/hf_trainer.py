"""Watch Hugging Face's Trainer. A callback reports the steps, because the loop is inside the Trainer.

torchrun --nproc-per-node 2 examples/watch/hf_trainer.py
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from parabench import watch

# With GPUs, start one process per GPU: --nproc-per-node gpu.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, LENGTH = 128, 32


class Watch(TrainerCallback):
    """Watch a trainer from its first to its last step."""

    def __init__(self, **options: Any) -> None:
        self.trainer: Trainer | None = None
        self._options, self._on = options, contextlib.ExitStack()
        self._steps: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        # The model as wrapped by DDP or FSDP. The callback does not receive it.
        self._steps = self._on.enter_context(watch(self.trainer.model_wrapped, kwargs["optimizer"], **self._options))
        self._steps.batch_requested()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.batch_received(None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.batch_requested()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the evaluation from the wait for the next batch."""
        if self._steps is not None:
            self._steps.no_more_batches()
            self._steps.batch_requested()

    on_save = on_evaluate

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.no_more_batches()
        self._on.close()


class Random(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random words."""

    def __len__(self) -> int:
        return int(os.environ.get("SAMPLES", "640"))

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": words, "labels": words}


def main() -> None:
    """Train with `watch`."""
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir="checkpoints",
        per_device_train_batch_size=4,
        num_train_epochs=1,
        use_cpu=DEVICE == "cpu",
        save_strategy="no",
        report_to="none",
        ddp_backend="nccl" if DEVICE == "cuda" else "gloo",
    )
    watching = Watch(global_batch=4 * arguments.world_size, seq_len=LENGTH)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Random(), callbacks=[watching])
    watching.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
