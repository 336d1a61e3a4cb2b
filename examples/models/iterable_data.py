"""Benchmark a model on texts of several lengths from an IterableDataset, padded by a collate function.

parabench run strategies --model iterable_data:factory --data iterable_data:Texts --set strategy=ddp,fsdp
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset

from parabench import Model

WORDS, CLASSES = 64, 4


class Texts(IterableDataset[tuple[Tensor, int]]):
    """Texts in a fixed order, equal on every rank. The class of a text is its first word modulo 4."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        generator = torch.Generator().manual_seed(0)
        for length in torch.randint(2, 20, (1000,), generator=generator).tolist():
            text = torch.randint(1, WORDS, (length,), generator=generator)
            yield text, int(text[0]) % CLASSES


def collate(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Return padded texts and their classes. The first dimension is the samples."""
    return pad_sequence([text for text, _ in items], batch_first=True), torch.tensor([label for _, label in items])


def factory() -> Model:
    """Return a classifier of bags of words, for data that collate makes into batches."""
    net = nn.Sequential(nn.EmbeddingBag(WORDS, 32, padding_idx=0), nn.ReLU(), nn.Linear(32, CLASSES))
    return Model(module=net, loss=nn.CrossEntropyLoss(), collate=collate)
