"""The peak memory of a rank is read over the measured steps, and excludes the norm of the gradient."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from guard import GUARD_S
from parabench.launch.spec import LaunchSpec, RankEnv
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import memory
from parabench.strategies.base import RankInfo, norm_of
from parabench.workloads import trainer
from parabench.workloads import training as worker
from ranks_helpers import complaints_of_ranks


def check_norms(rank: int, size: int) -> Iterator[str]:
    """Check that the norm of shards on 4 ranks equals the norm of the whole tensor, on every rank."""
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


def test_norm_of_shards_equals_the_norm_of_the_whole(tmp_path: Path) -> None:
    case = Case(world_size=4, device="cpu", backend="gloo", algorithm="ring")
    assert complaints_of_ranks(check_norms, case, tmp_path) == [[]] * 4


def test_peaks_count_from_the_measured_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []
    norm = trainer.norm_of

    def watched(gradients: Any) -> float:
        happened.append("norm")
        return norm(gradients)

    def take(training: Any, clock: Any, steps: int) -> None:
        happened.append(range(training.taken, training.taken + steps))
        own(training, clock, steps)

    own = trainer.Training.take
    monkeypatch.setattr(trainer, "norm_of", watched)
    monkeypatch.setattr(trainer.Training, "take", take)
    for name in ("forget_building", "forget_peak", "peak_memory"):
        function = getattr(memory, name)
        monkeypatch.setattr(memory, name, lambda device, f=function, n=name: (happened.append(n), f(device))[1])
    protocol = Protocol(warmup=2, steps=3, instrumented=1)
    case = Case(strategy="single", device="cpu", backend="gloo", data="synthetic", model="mlp", seq_len=1)
    env = RankEnv(folder=tmp_path, timeout_s=GUARD_S)
    worker.train(LaunchSpec.of(case, protocol, GUARD_S), env, RankInfo(0, 1, torch.device("cpu")))
    assert happened == [
        "forget_building", range(2), "norm", "forget_peak", range(2, 5), "peak_memory", range(5, 6),
    ]  # fmt: skip


def test_memory_reserved_while_building_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(device))
    device = torch.device("cuda", 1)
    memory.forget_building(device)
    assert asked == ["empty"]
    # Memory that is given back here would be asked for again by the first measured step.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    memory.forget_peak(device)
    assert asked == ["empty", 0, 1]
