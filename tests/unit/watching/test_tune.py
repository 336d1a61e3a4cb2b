"""Tuning of bucket caps: new buckets of a module, and the choice of the fastest cap."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.plan.schedule import TrainingSchedule
from parabench.watching.describe import bucket_cap_mib
from parabench.watching.loop import WIDTH
from parabench.watching.schedule import Schedule
from parabench.watching.tune import Tuning, set_cap, slower

ROUNDS = 12


def test_slower_interval_contains_the_truth_at_its_level() -> None:
    held, apart = 0, []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        drift = np.cumsum(rng.normal(0, 0.05, ROUNDS))
        found, half = slower(drift + np.log([[1.0], [1.2]]) + rng.normal(0, 0.05, (2, ROUNDS)), 0)
        apart.append(found[1])
        held += abs(found[1] - 0.2) <= 1.2 * half[1]
    assert 0.90 <= held / 200 <= 0.99
    assert np.mean(apart) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("missing", [False, True])
def test_tuning_ends_with_the_fastest_cap(alone: None, missing: bool) -> None:
    module = DistributedDataParallel(nn.Linear(4, 4), bucket_cap_mb=2)
    schedule = Schedule(warmup=2, tuning=TrainingSchedule(rounds=ROUNDS, settle=1, timed=(2, 2)))
    lines: list[str] = []
    tuning = Tuning(module=module, caps=(1.0, 25.0), schedule=schedule, device=torch.device("cpu"), log=lines.append)
    marks = np.zeros((schedule.first_measured, WIDTH))
    last = None
    for step in range(schedule.first_measured):
        tuning.before(step, lambda: marks)
        if step in schedule.turns:
            turn, _ = schedule.turns[step]
            assert bucket_cap_mib(module) == tuning.caps[turn.arm]
            marks[step, -1] = (0.5, 0.25)[turn.arm] * (1 + step % 3 / 100)
            last = turn.arm
    if missing:
        marks[-3:, -1] = np.nan
    for _ in range(2):  # a step starts twice if a loader ends before it
        tuning.before(schedule.first_measured, lambda: marks)
    (line,) = lines
    assert missing or line.startswith("Tuning of 2 bucket caps over 12 rounds of this run: 25 MiB is fastest; 1 MiB +")
    assert bucket_cap_mib(module) == (tuning.caps[last] if missing else 25)
    assert ("because the times of a rank are missing" in line) is missing


def test_set_cap_changes_the_buckets(alone: None) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    module = DistributedDataParallel(layers)
    called = buckets_of(module)
    counts = {}
    for cap in (0.2, 25.0):
        set_cap(module, cap)
        assert bucket_cap_mib(module) == pytest.approx(cap, rel=1e-5)
        for _ in range(3):
            called.clear()
            module(torch.ones(1, 256)).sum().backward()
        counts[cap] = len(called)
    assert counts[25.0] == 1
    assert counts[0.2] >= 8


def buckets_of(module: DistributedDataParallel) -> list[int]:
    """Return a list that receives the bucket of each reduction, from a communication hook."""
    called: list[int] = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        called.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()
    module.register_comm_hook(None, hook)
    return called


def test_set_cap_keeps_options_of_the_reducer(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    real = dist.Reducer  # type: ignore[attr-defined]

    def reducer(*arguments: object) -> object:
        given.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(dist, "Reducer", reducer)
    options = {"skip_all_reduce_unused_params": True, "batched_grad_copy": True, "find_unused_parameters": True}
    module = DistributedDataParallel(nn.Linear(4, 4), bucket_cap_mb=1, **options)
    set_cap(module, 1)
    before, after = ([each for each in arguments if isinstance(each, (bool, int))] for arguments in given)
    assert before == after
