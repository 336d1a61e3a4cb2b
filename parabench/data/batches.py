"""Batches of next-token prediction: the same global batch for every strategy, split between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from parabench.case import Case
from parabench.data import source


@dataclass(frozen=True, slots=True)
class Split:
    """Which part of each global batch is mine: rows `rank * size` to `(rank + 1) * size`."""

    rank: int
    ranks: int


def tokens(case: Case, vocabulary: int) -> Tensor:
    """The whole data source as int64 tokens on the CPU."""
    if case.data == "synthetic":
        generator = torch.Generator().manual_seed(case.seed)
        # Enough that no batch repeats within a few steps, little enough to be made at once.
        count = 64 * case.global_batch * case.seq_len + 1
        return torch.randint(vocabulary, (count,), generator=generator)
    return torch.frombuffer(bytearray(source.read_bytes(case.data)), dtype=torch.uint8).long()


def batches(case: Case, stream: Tensor, split: Split, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), each (global_batch / ranks, seq_len), of this rank's rows.

    Step s reads the next global_batch * seq_len tokens, starting over at the end of the stream; a target is the
    token after its input. What is read depends on the step alone, never on strategy or world size.
    """
    rows = case.global_batch // split.ranks
    span = case.global_batch * case.seq_len
    per_epoch = (stream.numel() - 1) // span
    step = 0
    while True:
        start = (step % per_epoch) * span + split.rank * rows * case.seq_len
        window = stream[start : start + rows * case.seq_len + 1].to(device, non_blocking=True)
        yield window[:-1].view(rows, case.seq_len), window[1:].view(rows, case.seq_len)
        step += 1
