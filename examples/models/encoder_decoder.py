"""Benchmark an encoder-decoder like T5, with dict batches, a padding mask, and the loss in the output.

parabench run strategies --model encoder_decoder:factory --set strategy=ddp,fsdp --set world_size=2
"""

import torch
from torch import Tensor, nn

from parabench import Model

WORDS, WIDTH, LENGTH = 64, 32, 12


class EncoderDecoder(nn.Module):
    """Read a text, and predict another one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.inner = nn.Transformer(WIDTH, 4, 1, 1, 4 * WIDTH, dropout=0.0, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss. Each label is predicted from the labels before it."""
        later = nn.Transformer.generate_square_subsequent_mask(LENGTH, labels.device) < 0
        masks = {"tgt_mask": later, "src_key_padding_mask": attention_mask == 0}
        before = self.words(nn.functional.pad(labels[:, :-1], (1, 0)))
        scores = self.head(self.inner(self.words(input_ids), before, **masks))
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())}


def batch(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return texts of several lengths. The labels are the reversed texts."""
    text = torch.randint(1, WORDS, (n, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (n, 1), generator=generator)).long()
    return {"input_ids": text * mask, "attention_mask": mask, "labels": text.flip(1)}


def factory() -> Model:
    """Return the model, which computes its loss itself."""
    return Model(module=EncoderDecoder(), batch=batch)
