"""The lines of `parabench.strategies.snippet`, executed as a script of somebody's own would have them."""

from __future__ import annotations

import gc
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rounding_helpers import FLOAT64_BOUND
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from parabench.collectives import join
from parabench.launch.rank import die_with_driver
from parabench.launch.rendezvous import LOOPBACK
from parabench.plan.case import Case
from parabench.strategies.snippet import snippet

WIDTH = 512  # a layer's weight is 1 MiB
ALIKE: dict[str, Any] = {"device": "cpu", "backend": "gloo", "world_size": 2, "algorithm": "ring"}
DDP = Case(strategy="ddp", bucket_mib=1.5, gradient_as_bucket_view=True, grad_accumulation=2, **ALIKE)
ZERO1 = Case(strategy="zero1", **ALIKE)
FSDP = Case(strategy="fsdp", bucket_mib=2.5, grad_accumulation=2, **ALIKE)
GRID = Case(strategy="tp_ddp", tp_size=2, **ALIKE)
PIPELINE = Case(strategy="pp", microbatches=2, **ALIKE)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


def script(case: Case, rank: int, *, joins: bool = False) -> dict[str, Any]:
    """The names of a script of one's own after it took the case's lines. Only the first is to join the group."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    names: dict[str, Any] = {
        "model": model,
        "blocks": list(model),
        "rank": rank,
        "device": torch.device("cpu"),
        "lr": 0.1,
        "plan": {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()},
        "part": model[rank],
        "inputs": torch.ones(4, WIDTH),
        "targets": torch.zeros(4, WIDTH),
        "loss_of": nn.functional.mse_loss,
    }
    lines = snippet(case).splitlines()
    if not joins:
        lines = [line for line in lines if not line.startswith(("use(", "dist.init_process_group("))]
    exec(compile("\n".join(lines), "snippet", "exec"), names)
    return names


def scripts(folder: Path) -> None:
    """What each of them did, in one group that the first one's own lines made."""
    die_with_driver()
    os.environ.update(LOOPBACK)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    # A script has an address from torchrun; here ranks meet through a file.
    dist.init_process_group = partial(
        dist.init_process_group, init_method=f"file://{folder / 'store'}", rank=rank, world_size=2
    )
    seen = [ddp(rank), zero1(rank), fsdp(rank), grid(rank), pipeline(rank)]
    gc.collect()
    join.leave()
    (folder / f"rank{rank}.json").write_text(json.dumps({k: v for each in seen for k, v in each.items()}))


def ddp(rank: int) -> dict[str, Any]:
    model = script(DDP, rank, joins=True)["model"]  # whose lines took a first, accumulated step
    calls = join.calls()["all_reduce"]
    logged = model._get_ddp_logging_data()
    return {
        "backend": dist.get_backend(),
        "algorithm": calls["algorithm"],
        "bucket_cap_bytes": logged["bucket_cap_bytes"],
        "gradient_as_bucket_view": bool(logged["gradient_as_bucket_view"]),
        "reduced_once": calls["calls"] <= len(logged["bucket_sizes"].split(",")) + 1,
        "alike": alike(next(model.parameters()).grad),
    }


def zero1(rank: int) -> dict[str, Any]:
    names = script(ZERO1, rank)
    model, optimizer = names["model"], names["optimizer"]
    model(torch.full((4, WIDTH), rank + 1.0)).sum().backward()
    optimizer.step()
    return {"own_states": len(optimizer.optim.state), "updated_alike": alike(next(model.parameters()).detach())}


def fsdp(rank: int) -> dict[str, Any]:
    model = script(FSDP, rank)["model"]
    weight = model[0].up.weight
    assert isinstance(weight, DTensor)
    return {
        "shard": list(weight.to_local().shape),
        "units": sum(hasattr(each, "unshard") for each in model),
        "gradient_is_sharded": isinstance(weight.grad, DTensor),
    }


def grid(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    ones = torch.ones(4, WIDTH, dtype=torch.float64)
    expected = nn.Sequential(Block(), Block()).double()(ones)
    model = script(GRID, rank)["model"].double()
    same = torch.allclose(model(ones), expected, rtol=FLOAT64_BOUND, atol=FLOAT64_BOUND)
    return {"part": list(model.module.parts[0].shape), "computes_the_same": same}


def pipeline(rank: int) -> dict[str, Any]:
    names = script(PIPELINE, rank)
    return {"stage_gradient": bool(names["part"].up.weight.grad.abs().sum() > 0)}


def alike(mine: Tensor) -> bool:
    """Whether both ranks have the same."""
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine.contiguous())
    return torch.equal(*both)
