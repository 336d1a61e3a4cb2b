"""Launches by time: all ranks agree on the number of steps, and the common steps are verified."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import FileStore

from command_line import parabench
from fake_launch import FakeLauncher
from guard import GUARD_S
from parabench.analysis.session import select_session
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import LEAST_MEASURED, LEAST_WARMUP
from parabench.session.request import Request, protocol_of
from parabench.store.record import Phase, Status
from parabench.store.results import load
from parabench.workloads.training import PIECES, RUN_IN, agreement, warm_up
from parabench.workloads.verify import reference_of, verify

BY_TIME = Protocol(warmup_s=2.0, measure_s=2.0)
HERE = {"device": "cpu", "backend": "gloo"}


class Training:
    """Steps on a device that runs behind its host: only a wait takes time. `step_s` returns the seconds of a step."""

    def __init__(self, step_s):
        self.time, self.taken, self.pieces = 0.0, 0, []
        self._step_s, self._queued = step_s, 0.0

    def take(self, steps):
        self.pieces.append(steps)
        self._queued += sum(self._step_s(self.taken + i) for i in range(steps))
        self.taken += steps

    def wait(self):
        self.time += self._queued
        self._queued = 0.0

    def now(self):
        return self.time


def paced(protocol, step_s, agree=lambda value: value):
    training = Training(step_s)
    counts = warm_up(protocol.alone(), training.take, training.wait, agree, training.now)
    assert training.taken == counts[0]
    return counts, training


# A binary fraction, so that sums of it are exact.
STEP_S = 1 / 64


def compiling(step):
    return 30.0 if step == 0 else 0.5 if step < LEAST_WARMUP else STEP_S


def test_warm_up_and_measurement_fill_their_seconds():
    (warmup, measured), training = paced(BY_TIME, compiling)
    assert measured == 128
    # The first steps do not raise the clocks.
    warm_s = (warmup - LEAST_WARMUP - RUN_IN) * STEP_S
    assert 2.0 <= warm_s < 2.0 + 2.0 / PIECES + STEP_S
    # After the last wait for the device its queue fills again.
    assert training.pieces[-1] == RUN_IN
    assert training._queued == RUN_IN * STEP_S


@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_of_different_speed_take_the_same_steps(size, tmp_path):
    """Nothing else synchronizes the ranks, as in an asynchronous strategy."""

    def rank(number):
        store = FileStore(str(tmp_path / "store"), size)
        return paced(BY_TIME, lambda step: 0.01 * (1 + number + 0.1 * (step % 3)), agreement(store, number, size))[0]

    with ThreadPoolExecutor(size) as pool:
        told = list(pool.map(rank, range(size)))
    assert len(set(told)) == 1
    # The slowest rank's steps fill the time.
    assert told[0][1] == pytest.approx(2.0 / (0.01 * (size + 0.1)), rel=0.05)


# -- the protocol


def test_resolved_uses_defaults_of_the_device():
    cpu, cuda = Protocol(launches=2).resolved("cpu"), Protocol(launches=2).resolved("cuda")
    assert (cpu.warmup, cpu.steps, cpu.warmup_s, cpu.measure_s) == (5, 40, None, None)
    assert (cuda.warmup, cuda.steps, cuda.warmup_s, cuda.measure_s) == (None, None, 2.0, 2.0)
    chosen = Protocol(steps=3, warmup_s=1.0)
    assert chosen.resolved("cpu") == chosen.resolved("cuda") == chosen
    assert Protocol(steps=3).resolved("cuda") == Protocol(steps=3, warmup_s=2.0)
    assert Protocol(warmup=2, steps=3).alone().counts() == (2, 3)
    assert Protocol().alone().counts() == (5, 40)
    assert Protocol(warmup=2, measure_s=1.0).alone().counts() == (2, LEAST_MEASURED)
    assert BY_TIME.alone().counts() == (LEAST_WARMUP, LEAST_MEASURED)
    assert BY_TIME.alone().all_steps == LEAST_WARMUP + LEAST_MEASURED + 4


def asked(**options):
    return Request.of(suite="s", argv=[], out=None, **options)


def test_protocol_of_replaces_steps_with_seconds():
    suites = Protocol(warmup=5, steps=20, launches=3)
    assert protocol_of(asked(), suites) == suites
    by_time = protocol_of(asked(measure_s=1.0), suites)
    assert by_time == Protocol(warmup=5, measure_s=1.0, launches=3)
    assert protocol_of(asked(steps=4), by_time) == Protocol(warmup=5, steps=4, launches=3)
    assert protocol_of(asked(warmup=3), BY_TIME) == Protocol(warmup=3, measure_s=2.0)

    words = asked(warmup_s=0.5, measure_s=1.0).words()
    assert words == ["--measure-seconds", "1.0", "--warmup-seconds", "0.5"]


# -- the session


def verified(loss_of, taken, reference_steps=45):
    fake = FakeLauncher(lambda case: 0.01)
    case = Case(world_size=2, **HERE)
    reference = FakeLauncher()(LaunchSpec.of(case.reference(), Protocol(warmup=5, steps=reference_steps - 5), 1.0))
    launched = fake(LaunchSpec.of(case, Protocol(warmup=2, steps=taken - 2), 1.0))
    launched.facts["counts"] = {"warmup": 2, "measured": taken - 2}
    launched.samples = [
        sample._replace(value=loss_of(sample.step, sample.value)) if sample.metric == "loss" else sample
        for sample in launched.samples
    ]
    verify(launched, reference_of(reference))
    return launched


@pytest.mark.parametrize(("taken", "compared"), [(20, 20), (45, 45), (300, 45)])
def test_losses_of_the_steps_that_both_took_are_compared(taken, compared):
    seen = verified(lambda step, loss: loss, taken)
    assert (seen.status, seen.facts["verified_steps"]) == (Status.OK, compared)
    last = verified(lambda step, loss: loss * (1 + 1e-3 * (step == compared - 1)), taken)
    assert last.status is Status.WRONG
    assert f"loss at step {compared - 1} is" in last.failure.message


# -- real ranks

REAL = [
    {"strategy": "single"},
    {"strategy": "ddp", "algorithm": "ring", "world_size": 3, "global_batch": 9},
    {"strategy": "pp", "world_size": 2, "microbatches": 4},
    {"strategy": "parameter_server_async", "world_size": 2},
]


@pytest.mark.parametrize("axes", REAL, ids=lambda axes: axes["strategy"])
def test_all_ranks_take_the_steps_that_they_agreed_on(axes):
    case = Case(model="toy", data="synthetic", seq_len=1, **{"global_batch": 8, **axes}, **HERE)
    seen = launch(LaunchSpec.of(case, Protocol(warmup_s=0.05, measure_s=0.05, instrumented=2), deadline_s=GUARD_S))
    assert seen.status is Status.OK, seen.failure
    counts = seen.facts["counts"]
    assert counts["measured"] >= LEAST_MEASURED
    expected = {Phase.WARMUP: counts["warmup"], Phase.MEASURE: counts["measured"], Phase.INSTRUMENT: 2}
    for rank in range(case.world_size):
        steps = [sample for sample in seen.samples if (sample.rank, sample.metric) == (rank, "step_s")]
        assert [sample.step for sample in steps] == list(range(sum(expected.values())))
        for phase, count in expected.items():
            assert sum(sample.phase is phase for sample in steps) == count
    assert math.fsum(seen.step_times(Phase.WARMUP)) >= 0.05


def test_a_session_of_the_command_goes_by_time(tmp_path):
    (tmp_path / "tiny.py").write_text(
        '"""Which?"""\nfrom parabench import sweep\n'
        'CASES = sweep(strategy=("single", "ddp"), world_size=2, model="toy", seq_len=1)\n'
    )
    words = ["run", tmp_path / "tiny.py", "--out", tmp_path, "--launches", 1, "--set", "device=cpu"]
    done = parabench(*words, "--warmup-seconds", 0.05, "--measure-seconds", 0.05)
    assert done.exit_code == 0, done.output
    protocol = select_session(load(tmp_path / "results.db")).plan["protocol"]
    assert [protocol[name] for name in ("warmup", "warmup_s", "steps", "measure_s")] == [None, 0.05, None, 0.05]
