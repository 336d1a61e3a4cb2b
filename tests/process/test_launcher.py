"""launch() reports how ranks end, and leaves no process and no file behind."""

import multiprocessing
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from faulty_helpers import FAULTY_RANK
from guard import GUARD_S
from hang_helpers import pass_when
from parabench import files
from parabench.launch.processes import run_processes, start_server
from parabench.launch.rank import main
from parabench.launch.rendezvous import LOOPBACK
from parabench.launch.spec import LaunchSpec, RankEnv
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Phase, Status
from parabench.strategies import STRATEGIES
from parabench.workloads.training import TrainingWorkload
from real_launches import failed, launched, succeeded

PROTOCOL = Protocol(warmup=2, steps=4, instrumented=0)


def case(strategy: str, **fields: Any) -> Case:
    settled: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 8}
    own = strategy if strategy in STRATEGIES else f"faulty_helpers:{strategy}"
    return Case(strategy=own, **(settled | {"world_size": 2} | fields))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test that no process, file, semaphore or environment variable is left."""
    start_server()
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(files, "own_folder", lambda where=None: memory)
    prefix = f"/parabench-{uuid.uuid4().hex}"
    monkeypatch.setitem(multiprocessing.current_process()._config, "semprefix", prefix)  # type: ignore[attr-defined]
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    environment = settings()
    yield
    after = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert after == []
    assert list(memory.iterdir()) == []
    assert list(Path("/dev/shm").glob(f"sem.{prefix[1:]}*")) == []
    assert settings() == environment


def settings() -> dict[str, str]:
    """Return the environment without the variables of pytest and torch elastic."""
    return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST" and not k.startswith("TORCHELASTIC_")}


def steps_kept(seen: Launch, rank: int) -> list[tuple[int | None, str]]:
    return [(s.step, s.phase) for s in seen.samples if s.rank == rank and s.metric == "step_s"]


@pytest.mark.parametrize(("strategy", "algorithm"), [("raising", "native"), ("raising_in_backward", "ring")])
def test_an_exception_is_failed_with_its_rank_and_traceback(strategy: str, algorithm: str) -> None:
    seen = failed(case(strategy, algorithm=algorithm), PROTOCOL, Status.FAILED)
    assert seen.failure.rank == FAULTY_RANK
    assert seen.failure.message == "RuntimeError: the dog ate it"
    assert "in _raise" in seen.failure.traceback
    # The whole steps that were measured before are kept with their phases.
    assert steps_kept(seen, FAULTY_RANK) == [(0, Phase.WARMUP), (1, Phase.WARMUP), (2, Phase.MEASURE)]


@pytest.mark.parametrize(("strategy", "op"), [("ddp", "all_reduce"), ("fsdp", "reduce_scatter")])
def test_an_algorithm_that_breaks_is_failed_with_its_name(strategy: str, op: str) -> None:
    """The error occurs on the thread of the group. DDP waits for it in C++, FSDP in Python."""
    seen = failed(case(strategy, algorithm="wrong_helpers:BREAKING"), PROTOCOL, Status.FAILED)
    assert seen.failure.rank == FAULTY_RANK
    assert f"breaking {op} on rank 1 of 2: ValueError: the wire broke" in seen.failure.message
    assert "\n" not in seen.failure.message


@pytest.mark.parametrize(
    ("strategy", "algorithm", "signal"),
    [("killed_in_backward", "ring", "SIGKILL"), ("segfaulting", "native", "SIGSEGV")],
)
def test_a_signal_is_crashed_with_its_rank(strategy: str, signal: str, algorithm: str) -> None:
    # The fixture checks that the rank's DataLoader worker ends too.
    seen = failed(
        case(strategy, algorithm=algorithm, world_size=3, global_batch=9, workers=1), PROTOCOL, Status.CRASHED
    )
    assert (seen.failure.rank, seen.failure.signal) == (FAULTY_RANK, signal)
    assert signal in seen.failure.message
    if signal == "SIGSEGV":
        assert "in _signal" in (seen.failure.traceback or "")
    assert steps_kept(seen, FAULTY_RANK) == [(0, Phase.WARMUP), (1, Phase.WARMUP), (2, Phase.MEASURE)]


def test_a_rank_that_vanishes_is_crashed_whatever_its_peers_say() -> None:
    seen = failed(case("vanishing"), PROTOCOL, Status.CRASHED)
    assert str(seen.failure) == "rank 1: ended without a trace"


def test_processes_left_by_a_rank_end_with_the_launch() -> None:
    # The fixture looks for what is left.
    assert launched(case("leaving_a_child"), PROTOCOL).status is Status.OK


@pytest.mark.parametrize("strategy", ["out_of_device_memory", "allocating_too_much"])
def test_out_of_memory_is_reported(strategy: str) -> None:
    seen = failed(case(strategy), PROTOCOL, Status.OOM)
    assert seen.failure.rank == FAULTY_RANK
    assert steps_kept(seen, FAULTY_RANK) == [(0, Phase.WARMUP), (1, Phase.WARMUP), (2, Phase.MEASURE)]


@pytest.mark.parametrize("strategy", ["waiting", "stopping_in_build"])
def test_a_hang_is_hung_with_the_rank_that_is_waited_for(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_when(monkeypatch)
    seen = failed(case(strategy), PROTOCOL, Status.HUNG)
    assert seen.failure.rank == FAULTY_RANK
    kept = [] if strategy == "stopping_in_build" else [(0, Phase.WARMUP), (1, Phase.WARMUP), (2, Phase.MEASURE)]
    assert steps_kept(seen, 0) == kept
    if strategy == "waiting":  # where each rank is
        assert "in _wait_forever" in (seen.failure.traceback or "")
        assert "in backward" in (seen.failure.traceback or "").partition("rank 1:")[0]


def test_a_hang_names_the_collective_and_who_did_not_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank has started a step, so only the flight recorder has the collective."""
    pass_when(monkeypatch)
    seen = failed(case("waiting_in_build"), PROTOCOL, Status.HUNG)
    assert seen.failure.rank == FAULTY_RANK
    assert "rank 1 has not called" in seen.failure.message
    assert "of the group of ranks 0, 1, in which rank 0 waits" in seen.failure.message
    assert "not over: " in seen.failure.traceback.partition("\n")[0]


def test_no_rank_is_blamed_for_a_hang_when_all_came_equally_far(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_when(monkeypatch)
    seen = failed(case("all_waiting_in_build"), PROTOCOL, Status.HUNG)
    assert seen.failure.rank is None
    assert "in _wait_forever" in seen.failure.traceback.partition("rank 1:")[2]


def test_launch_does_not_inherit_an_earlier_environment(tmp_path: Path) -> None:
    environment = {**LOOPBACK, "PARABENCH_TEST_JOB": "1"}
    env = RankEnv(folder=tmp_path, timeout_s=GUARD_S, environment=environment)
    args = TrainingWorkload(), LaunchSpec.of(case("leaving_traces"), Protocol(), GUARD_S), env
    assert run_processes(main, args, size=2, deadline_s=GUARD_S, logs=tmp_path / "logs").ok
    seen = succeeded(case("observing"), PROTOCOL)
    environment = seen.facts["environment"]
    assert environment.keys() >= LOOPBACK.keys()
    assert not environment.keys() & {"PARABENCH_TEST_TRACE", "PARABENCH_TEST_JOB"}


def test_a_good_launch_has_exactly_the_samples_of_its_steps() -> None:
    seen = launched(case("ddp"), PROTOCOL)
    assert (seen.status, seen.failure) == (Status.OK, None)
    assert (seen.spans, seen.collectives) == ([], [])  # without instrumented steps
    phases = [Phase.WARMUP] * PROTOCOL.warmup + [Phase.MEASURE] * PROTOCOL.steps
    for rank in range(2):
        assert steps_kept(seen, rank) == list(enumerate(phases))
        parts: dict[int | None, float] = {}
        for sample in seen.samples:
            if sample.rank == rank and sample.metric in ("data_s", "forward_s", "backward_s", "optimizer_s"):
                assert sample.value > 0
                parts[sample.step] = parts.get(sample.step, 0.0) + sample.value
        whole = {s.step: s.value for s in seen.samples if s.rank == rank and s.metric == "step_s"}
        assert parts == pytest.approx(whole)
    assert sum(value or 0 for value in whole.values()) < seen.wall_s
