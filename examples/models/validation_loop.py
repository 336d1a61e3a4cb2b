"""Watch a loop that validates every 10 steps. The validation is not part of forward or backward.

torchrun --nproc-per-node 2 examples/models/validation_loop.py
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from parabench import watch

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(1280, 64)
    data = TensorDataset(inputs, inputs[:, :8].argmax(1))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as steps:
        for step, (x, y) in enumerate(steps(loader), start=1):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                model.eval()
                with torch.no_grad():
                    right = (model.module(inputs).argmax(1) == data.tensors[1]).float().mean()
                if dist.get_rank() == 0:
                    print(f"step {step}: {right:.1%} right")
                model.train()
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()
