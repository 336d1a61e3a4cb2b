"""The work of a rank before it joins its process group, and its checksums of replicas."""

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from guard import GUARD_S
from parabench.launch.spec import LaunchSpec, RankEnv
from parabench.models.options import share_compile_threads
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes.communication import SynchronizedClock
from parabench.probes.replicas import PIECE, checksum, fingerprints, replicas_apart
from parabench.probes.step_clock import MARKS
from parabench.workloads import training
from trained_helpers import Marks

CPU = torch.device("cpu")


def case(**fields: Any) -> Case:
    settled = {"device": "cpu", "backend": "gloo", "data": "synthetic", "model": "mlp", "seq_len": 1, "global_batch": 8}
    return Case(**(settled | {"world_size": 2} | fields))


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


class Joined(Exception):
    """The rank started to join its group."""


def test_workers_are_forked_before_the_group_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = workers()
    seen: list[int] = []

    def join(case: Case, env: RankEnv, rank: int) -> None:
        seen.append(len(workers()) - len(before))
        raise Joined

    monkeypatch.setattr(training, "join_group", join)
    spec = LaunchSpec.of(case(workers=2), Protocol(), GUARD_S)
    with pytest.raises(Joined):
        training.TrainingWorkload().measure(spec, RankEnv(folder=tmp_path, timeout_s=GUARD_S), 0)
    assert seen == [2]


DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.complex128)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checksum_tells_any_element_and_its_place(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tensor = torch.randint(0, 200, (PIECE + 5,)).to(dtype)
    own = int(checksum(tensor))
    assert int(checksum(tensor.clone().view(-1, 1).t())) == own
    for at in (0, 1, PIECE - 1, PIECE, PIECE + 4):
        other = tensor.clone()
        other[at] += 1
        assert int(checksum(other)) != own
    swapped = tensor.clone()
    swapped[3], swapped[PIECE + 2] = 7, 9
    back = swapped.clone()
    back[3], back[PIECE + 2] = 9, 7
    assert int(checksum(swapped)) != int(checksum(back))


def test_replicas_that_differ_in_one_bit_are_apart() -> None:
    one = {"a": torch.nn.Parameter(torch.ones(3)), "b": torch.nn.Parameter(torch.zeros(()))}
    two = {"a": torch.nn.Parameter(torch.ones(3)), "b": torch.nn.Parameter(torch.tensor(1e-45))}
    told = [fingerprints(each) for each in (one, two, one)]
    assert replicas_apart(told) == {"replicas_apart": {"parameter": "b", "ranks": [1], "parameters": 1}}
    assert fingerprints({}) == {}


def test_host_waits_for_the_device_after_each_step() -> None:
    recorded: Any = Marks()
    clock = SynchronizedClock(recorded, recorded)
    for step in range(2):
        for at in range(MARKS):
            clock.skip() if (step, at) == (1, 2) else clock.mark()
    assert recorded.calls == ["mark"] * 5 + ["wait", "mark", "mark", "skip", "mark", "mark", "wait"]


@pytest.mark.parametrize(("cores", "ranks", "expected"), [(16, 8, 2), (2, 4, 1), (256, 2, 32)])
def test_ranks_share_the_cores_of_their_node_to_compile(
    cores: int, ranks: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    with config.patch(compile_threads=7):
        share_compile_threads()
        assert config.compile_threads == 7
        monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
        share_compile_threads()
        assert config.compile_threads == expected
