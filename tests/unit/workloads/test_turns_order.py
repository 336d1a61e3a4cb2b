"""The order of events in a rank of interleaved cases: work, and waits for devices, peers and the other variant."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parabench.launch.spec import LaunchSpec, RankEnv
from parabench.launch.token import Pair
from parabench.plan.case import Case
from parabench.plan.schedule import TrainingSchedule
from parabench.probes import CaseReport
from parabench.strategies.base import RankInfo
from parabench.workloads import training as workload

SCHEDULE = TrainingSchedule(rounds=2, settle=1, timed=(1, 1), warmup=2)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the events in a rank, in order. Fakes replace everything that needs a device, and log their calls."""
    log: list[str] = []

    def says(word: str, answer: Any = None) -> Any:
        return lambda *args, **kwargs: (log.append(word), answer)[1]

    class Partner:
        def __init__(self, pair: Pair) -> None:
            self.first: list[bool] = []

        next_turn = says("token")
        end = says("end")

    clock = SimpleNamespace(mark=lambda: None, skip=lambda: None, finish=says("finish"))
    arm = SimpleNamespace(take=says("train"), report=says("read", CaseReport()))
    groups = SimpleNamespace(use=says("use"), barrier=says("barrier"), close=says("close"))
    monkeypatch.setattr(workload.join, "WorldGroups", lambda *args: groups)
    monkeypatch.setattr(workload, "Partner", Partner)
    monkeypatch.setattr(workload, "StepClock", lambda *args: clock)
    monkeypatch.setattr(workload.hang, "set_clock", lambda *args: None)
    monkeypatch.setattr(workload.accelerator, "synchronize", says("wait for the device"))
    monkeypatch.setattr(workload, "forget_building", says("give back"))
    monkeypatch.setattr(workload, "build", says("build", arm))
    return log


@pytest.mark.parametrize("rank", [0, 1])
def test_token_is_passed_after_all_devices_are_idle(seen, tmp_path, rank) -> None:
    cases = tuple(Case(device="cuda", backend="gloo", world_size=2, bucket_mib=size) for size in (1, 2))
    pair = Pair(run="x", side="a", folder=str(tmp_path))
    spec = LaunchSpec(kind="training", cases=cases, protocol=SCHEDULE, deadline_s=60.0, pair=pair)
    info = RankInfo(rank, 2, torch.device("cuda", 0))
    workload.train(spec, RankEnv(folder=tmp_path, timeout_s=60.0), info)
    # Rank 0 waits for the token. The others wait for rank 0.
    handed_on = ["wait for the device", "barrier", *(["token"] if rank == 0 else []), "barrier"]
    count = sum(1 for turn in SCHEDULE.turns() if turn.steps)
    between: list[list[str]] = [[]]
    for word in seen:
        if word in ("build", "train", "read"):
            between.append([])
        elif word not in ("use", "give back", "finish"):
            between[-1].append(word)
    # Before each turn, and before the training runs are read.
    assert between[: count + 1] == [handed_on] * (count + 1)
    assert seen.index("finish") < seen.index("read")
    # All devices are idle before the other variant takes its last turns.
    assert between[-1] == ["wait for the device", "barrier", *(["end"] if rank == 0 else []), "close"]
    assert all(not each for each in between[count + 1 : -1])
