"""Ranks that hold parts of known gradients, in every layout that a strategy makes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from parabench.strategies.base import norm_of


def check_norms(rank: int, size: int) -> Iterator[str]:
    """The norm of what is spread over 4 ranks is that of the whole, on every rank."""
    torch.manual_seed(7)
    # 7 rows over 4 ranks: shards differ in size. 3 rows: one rank has nothing.
    uneven, few, plain = torch.randn(7, 5), torch.randn(3, 2), torch.randn(6)
    scalar = torch.tensor(3.0)
    line = init_device_mesh("cpu", (size,))
    plane = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    inner = plane["tp"]

    def partial(tensor: Tensor) -> DTensor:
        own = tensor * (rank + 1) / sum(range(1, size + 1))
        return DTensor.from_local(own, line, [Partial()], run_check=False)

    ways: dict[str, list[tuple[Tensor, Tensor]]] = {
        "plain": [(uneven, uneven), (scalar, scalar)],
        "shard": [(each, distribute_tensor(each, line, [Shard(0)])) for each in (uneven, few)],
        "shard of columns": [(uneven, distribute_tensor(uneven, line, [Shard(1)]))],
        "replicate": [(uneven, distribute_tensor(uneven, line, [Replicate()]))],
        "partial": [(uneven, partial(uneven))],
        "hybrid": [(uneven, distribute_tensor(uneven, plane, [Replicate(), Shard(0)]))],
        "two dimensions": [(uneven, distribute_tensor(uneven, plane, [Shard(0), Shard(1)]))],
        "a mesh of some ranks": [(uneven, distribute_tensor(uneven, inner, [Shard(0)]))],
        "replicated on some ranks": [(uneven, distribute_tensor(uneven, inner, [Replicate()]))],
    }
    ways["all together"] = [*(pair for pairs in ways.values() for pair in pairs), (plain, plain)]
    for name, pairs in ways.items():
        expected = math.sqrt(sum(float(whole.double().square().sum()) for whole, _ in pairs))
        seen = norm_of(held for _, held in pairs)
        # Sums of a few hundred float64 products, in another order; partial sums are rounded to float32.
        if not math.isclose(seen, expected, rel_tol=1e-6 if name in ("partial", "all together") else 1e-13):
            yield f"{name}: {seen} on rank {rank}, {expected} of the whole"
    dist.barrier()
