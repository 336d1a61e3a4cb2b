"""A hand-written DDP loop, as anybody would write it under torchrun: what `step_truth` compares with.

It shares the model's definition with parabench and nothing else. Arguments: steps, batch, sequence length, file.
Rank r writes its step times, in seconds, to FILE.r as JSON.
"""

import json
import sys
import time
from importlib.resources import files
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parabench.models.gpt import GPT, next_token_loss


def main() -> None:
    steps, batch, seq_len = map(int, sys.argv[1:4])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(layers=4, heads=4, width=128, vocabulary=256, context=1024))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    text = files("parabench.data").joinpath("sample.txt").read_bytes()
    tokens = torch.tensor(list(text))
    rows, span = batch // world, batch * seq_len
    times = []
    for step in range(steps):
        begin = time.perf_counter()
        start = step % ((len(tokens) - 1) // span) * span + rank * rows * seq_len
        window = tokens[start : start + rows * seq_len + 1]
        inputs, targets = window[:-1].view(rows, seq_len), window[1:].view(rows, seq_len)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    Path(f"{sys.argv[4]}.{rank}").write_text(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
