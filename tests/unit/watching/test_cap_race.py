"""A race of bucket caps: what can be raced, what is wrapped anew, and who wins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.errors import UsageError
from parabench.plan.turns import TurnsProtocol
from parabench.watching.describe import caps_of
from parabench.watching.group import Group
from parabench.watching.race import Verdict, agreed, checked, set_cap, verdict

PROTOCOL = TurnsProtocol(rounds=12, settle=1, timed=3)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def steps_of(mean_s: float, seed: int) -> list[float]:
    lot = np.random.default_rng(seed)
    return list(mean_s * np.exp(lot.normal(0, 0.02, PROTOCOL.rounds * 3)))


def test_the_fastest_cap_wins_and_the_others_are_behind_it() -> None:
    found = verdict([steps_of(1.1, 0), steps_of(1.0, 1), steps_of(1.03, 2)], PROTOCOL)
    assert found.best == 1
    assert found.slower[1] == 0
    assert found.slower[0] == pytest.approx(0.1, abs=0.02)
    assert found.slower[2] == pytest.approx(0.03, abs=0.02)
    assert all(0 < half < 0.05 for at, half in enumerate(found.half_widths) if at != 1)
    assert "1 MiB is fastest" in found.sentence((0.2, 1, 25), 12)
    assert "25 MiB +" in found.sentence((0.2, 1, 25), 12)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        lot = np.random.default_rng(seed)
        drift = np.repeat(np.exp(np.cumsum(lot.normal(0, 0.05, PROTOCOL.rounds))), 3)
        steps = [list(drift * mean * np.exp(lot.normal(0, 0.05, drift.size))) for mean in (1.0, 1.2)]
        found = verdict(steps, PROTOCOL)
        held += abs(found.slower[1] - 0.2) <= 1.2 * found.half_widths[1]
    assert 0.90 <= held / 200 <= 0.99


def test_all_ranks_have_the_verdict_of_the_first() -> None:
    store, verdicts = dist.HashStore(), [Verdict(0, (0.0, 0.1), (0.0, 0.05)), Verdict(1, (0.2, 0.0), (0.01, 0.0)), None]
    ranks = [Group(store, rank, ("a",) * 3) for rank in range(3)]
    assert [agreed(*each) for each in zip(ranks, verdicts, strict=True)] == [verdicts[0]] * 3
    late = [Group(dist.PrefixStore("late", store), rank, ("a",) * 2) for rank in range(2)]
    assert [agreed(*each) for each in zip(late, [None, verdicts[0]], strict=True)] == [None, None]


@pytest.mark.parametrize(
    "race",
    [
        {},
        {"bucket_mib": [1]},
        {"bucket_mib": [1, 1]},
        {"bucket_mib": [0, 1]},
        {"bucket_mib": ["one", 2]},
        {"bucket_mib": 4},
        {"algorithm": ["ring", "tree"]},
        [1, 4],
    ],
)
def test_checked_refuses_what_is_no_race(race: Any) -> None:
    with pytest.raises(UsageError, match="give two or more bucket caps"):
        checked(race, nn.Linear(1, 1))


def test_a_module_has_the_buckets_of_its_new_cap_and_trains_on(alone: None) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    module = DistributedDataParallel(layers)
    called = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        called.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()  # DDP wants types there, not their names
    module.register_comm_hook(None, hook)
    counts = {}
    for cap in (0.2, 25.0):
        set_cap(module, cap)
        assert caps_of(module) == pytest.approx(cap, rel=1e-5)
        for _ in range(3):
            called.clear()
            module(torch.ones(1, 256)).sum().backward()
        counts[cap] = len(called)
    assert counts[25.0] == 1
    assert counts[0.2] >= 8


def buckets_of(module: DistributedDataParallel) -> list[int]:
    """The bucket of each reduction, as a communication hook is asked for it."""
    called: list[int] = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        called.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()
    module.register_comm_hook(None, hook)
    return called


def test_with_a_static_graph_the_first_step_of_a_cap_is_reduced_too(alone: None) -> None:
    module = DistributedDataParallel(nn.Linear(4, 4), static_graph=True)
    called = buckets_of(module)
    for _ in range(2):
        module(torch.ones(1, 4)).sum().backward()
    for cap in (0.2, 25.0):
        set_cap(module, cap)
        for _ in range(2):
            called.clear()
            module(torch.ones(1, 4)).sum().backward()
            assert called == [0]


def test_options_of_the_reducer_stay(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    real = dist.Reducer  # type: ignore[attr-defined]

    def reducer(*arguments: object) -> object:
        given.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(dist, "Reducer", reducer)
    options = {"skip_all_reduce_unused_params": True, "batched_grad_copy": True, "find_unused_parameters": True}
    module = DistributedDataParallel(nn.Linear(4, 4), bucket_cap_mb=1, **options)
    set_cap(module, 1)
    own, anew = ([each for each in arguments if isinstance(each, (bool, int))] for arguments in given)
    assert own == anew


@pytest.mark.parametrize("own", [True, False])
def test_set_cap_keeps_the_cap_when_a_rank_fails(own: bool, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = DistributedDataParallel(nn.Linear(4, 4), bucket_cap_mb=2)
    called, reducer = buckets_of(module), module.reducer

    def fails(*_: object) -> None:
        raise MemoryError("no room")

    if own:
        monkeypatch.setattr(dist, "Reducer", fails)
    message = "no room" if own else "another rank could not change its bucket cap"
    with pytest.raises((MemoryError, RuntimeError), match=message):
        set_cap(module, 1, lambda can: False)
    assert module.reducer is reducer
    assert caps_of(module) == 2
    for _ in range(3):
        called.clear()
        module(torch.ones(1, 4)).sum().backward()
        assert called == [0]


def test_hooks_that_cannot_go_from_one_reducer_to_another_have_no_race(alone: None) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    race = {"bucket_mib": [1.0, 2.0]}
    module = DistributedDataParallel(nn.Linear(4, 4))
    assert checked(race, module) == (1, 2)
    module._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="ALLREDUCE cannot be registered anew"):
        checked(race, module)
    module = DistributedDataParallel(nn.Linear(4, 4))
    module.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1), powerSGD_hook.powerSGD_hook)
    with pytest.raises(UsageError, match="PowerSGD"):
        checked(race, module)
