"""A hand-written DDP loop, as anybody would write it under torchrun: what `step_truth` compares with.

It shares the model's definition with parabench and nothing else.
"""

from importlib.resources import files

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parabench.models.reference import GPT, next_token_loss


class Bare:
    """Model, optimizer and data of such a loop, in a process whose group is joined."""

    def __init__(self, batch: int, seq_len: int) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(GPT(layers=4, heads=4, width=128, vocabulary=256, context=1024))
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        text = files("parabench.data").joinpath("sample.txt").read_bytes()
        self.tokens = torch.tensor(list(text))
        self.batch, self.seq_len, self.taken = batch, seq_len, 0

    def step(self) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        rows, span = self.batch // world, self.batch * self.seq_len
        start = self.taken % ((len(self.tokens) - 1) // span) * span + rank * rows * self.seq_len
        window = self.tokens[start : start + rows * self.seq_len + 1]
        inputs, targets = window[:-1].view(rows, self.seq_len), window[1:].view(rows, self.seq_len)
        loss = next_token_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1
