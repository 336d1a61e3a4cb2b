"""Timed steps carry nothing: not one byte is written, read or sent in them that the training does not ask for."""

from typing import Any

import pytest

from benchmarks.instruments import NoSampler
from guard import GUARD_S
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Status

WARMUP, STEPS = 3, 6
NOTHING = {"wchar": 0, "syscw": 0, "rchar": 0, "syscr": 0, "tcp": 0, "opened": []}


def moved(strategy: str, ranks: int, instrumented: int, algorithm: str = "native") -> list[list[dict[str, Any]]]:
    """Return the bytes that each measured step but the last moved, for every rank."""
    case = Case(
        model="own_helpers:model",
        strategy=f"traffic_helpers:{strategy}",
        algorithm=algorithm,
        world_size=ranks,
        device="cpu",
        backend="gloo",
        data="synthetic",
        global_batch=8,
        bucket_mib=0.0005,  # more than one bucket
    )
    launched = launch(
        LaunchSpec.of(case, Protocol(warmup=WARMUP, steps=STEPS, instrumented=instrumented), deadline_s=GUARD_S)
    )
    assert launched.status == Status.OK, launched.failure
    assert len(launched.facts["moved"]) == ranks
    return [steps[WARMUP : WARMUP + STEPS - 1] for steps in launched.facts["moved"]]


def test_steps_of_one_device_move_no_byte() -> None:
    """Timestamps go to mapped memory, without system calls. The group of one process makes the facts available."""
    assert moved("single", 1, instrumented=4) == [[NOTHING] * (STEPS - 1)]
    ((step, *others),) = moved("chatty", 1, instrumented=4)
    assert step["wchar"] == len("so far so good\n")
    assert others == [step] * (STEPS - 2)


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_instruments_move_no_byte_in_measured_steps(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes and calls that gloo writes to its sockets are equal with and without instruments, and nothing else is
    written. gloo receives with recv, which does not count as a read."""
    full = moved("ddp", 2, 4, algorithm)
    monkeypatch.setattr("parabench.launch.launcher.Sampler", NoSampler)
    assert moved("ddp", 2, 0, algorithm) == full
    for steps in full:
        assert steps == [steps[0]] * (STEPS - 1)
        sent = steps[0]["tcp"]
        assert sent > 4 * (12 * 24 + 24 + 24 * 4 + 4)  # every gradient once to the other rank, and gloo's heads
        assert steps[0] == NOTHING | {"wchar": sent, "syscw": steps[0]["syscw"], "tcp": sent}
