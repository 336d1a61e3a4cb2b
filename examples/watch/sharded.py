"""Watch a model that is sharded like in torchtitan: FSDP2 on a device mesh, block by block, then the rest.

torchrun --nproc-per-node 2 examples/watch/sharded.py
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from parabench import watch

# With GPUs, start one process per GPU: --nproc-per-node gpu.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, LENGTH, WIDTH, LAYERS = 128, 64, 64, 3


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, seen: Tensor) -> Tensor:
        return seen + self.down(nn.functional.silu(self.up(self.norm(seen))))


class Model(nn.Module):
    """Blocks between an embedding and the scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        seen = self.words(words)
        for layer in self.layers:
            seen = layer(seen)
        scores: Tensor = self.head(seen)
        return scores


def batches() -> Iterator[dict[str, Tensor]]:
    """Batches like in torchtitan's loader: dictionaries, without a known end."""
    while True:
        text = torch.randint(0, WORDS, (4, LENGTH + 1))
        yield {"input": text[:, :-1], "labels": text[:, 1:]}


def train() -> None:
    """Train with `watch`."""
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    torch.manual_seed(0)
    model = Model().to(DEVICE)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    last = int(os.environ.get("STEPS", "80"))
    with watch(model, optimizer) as steps:
        for step, batch in enumerate(steps(batches()), start=1):
            words, labels = batch["input"].to(DEVICE), batch["labels"].to(DEVICE)
            nn.functional.cross_entropy(model(words).flatten(0, 1), labels.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == last:
                break


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
