"""Watch a small GPT that trains like nanoGPT: accumulated micro-batches, clipped gradients, DDP.

torchrun --nproc-per-node 2 examples/watch/nanogpt.py
"""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from parabench import watch

# With GPUs, start one process per GPU: --nproc-per-node gpu.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, LENGTH, WIDTH, LAYERS = 128, 64, 64, 2
ACCUMULATE = 2


class GPT(nn.Module):
    """Decoder blocks with learned positions. The output is the mean loss of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=words.device)
        seen = self.words(words) + self.places(torch.arange(length, device=words.device))
        scores = self.head(self.blocks(seen, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def train() -> None:
    """Train with `watch`."""
    torch.manual_seed(0)
    text = torch.randint(0, WORDS, (int(os.environ.get("SAMPLES", "640")), LENGTH + 1))
    data = TensorDataset(text[:, :-1], text[:, 1:])
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), drop_last=True)
    model = DistributedDataParallel(GPT().to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as steps:
        for at, (words, following) in enumerate(steps(loader)):
            last = (at + 1) % ACCUMULATE == 0
            model.require_backward_grad_sync = last
            loss = model(words.to(DEVICE), following.to(DEVICE))
            (loss / ACCUMULATE).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


def main() -> None:
    """Join the group, train, and leave it. Objects that use the group are deleted first."""
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    train()
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
