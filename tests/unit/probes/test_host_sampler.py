"""The host around a launch: what ranks hold, what others compute, and an allocation seen where and when it was made."""

from __future__ import annotations

import os
from collections import namedtuple
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest

import fake_results as fake
import memory_helpers
from fake_nvml import Clock
from guard import GUARD_S
from parabench.analysis.energy import phases
from parabench.analysis.session import session_data
from parabench.analysis.step.device_time import memory_timeline
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.metrics import METRICS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import host
from parabench.probes.host import ENDED, Host
from parabench.probes.sampler import PERIOD_S, RankPids, Sampler
from parabench.store.record import MIB, HostSample, Phase, Status

# Two periods of a sampler and a little: a process that others keep from its core for so long is still at it.
PAUSE_S = 0.25
# A process always grows a little: of what is looked for, this share is no part of it.
SLIGHT = 0.01


@dataclass(frozen=True)
class Allocation:
    """Memory that came to stay: so many bytes, between the reading at `after_s` and the one at `until_s`."""

    after_s: float
    until_s: float
    bytes: float


def allocations(line: pd.DataFrame, least_bytes: float, *, pause_s: float = PAUSE_S) -> list[Allocation]:
    """Where one place's memory grew by `least_bytes` or more, and did not shrink meanwhile.

    Filling what was allocated may take longer than a reading's period, and be interrupted: rises with less than
    `pause_s` between them are one.
    """
    line = line.dropna(subset=["bytes"])
    rises: list[Allocation] = []
    together = False
    readings = list(zip(line["t_s"], line["bytes"], strict=True))
    for (before_s, before), (t_s, size) in pairwise(readings):
        if size - before > SLIGHT * least_bytes:
            last = rises[-1] if together else None
            if last is not None and before_s - last.until_s < pause_s:
                rises[-1] = Allocation(last.after_s, t_s, last.bytes + size - before)
            else:
                rises.append(Allocation(before_s, t_s, size - before))
            together = True
        elif size < before:
            together = False
    return [rise for rise in rises if rise.bytes >= least_bytes]


CORES = 4
Times = namedtuple("Times", "user nice system irq softirq idle iowait steal")


class FakeHost:
    """A host of four cores in which rank 0 (501), its worker (502) and somebody else use shares of a core each."""

    def __init__(self, clock: Clock, others: float) -> None:
        self.clock = clock
        self.loads = {os.getpid(): 0.0, 501: 1.0, 502: 0.5}
        self.others = others
        self.ended: set[int] = set()
        self.stands_still = False
        self.resident = 100.0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
        monkeypatch.setattr(host.psutil, "Process", self.process)
        monkeypatch.setattr(host.psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(host, "descendants", lambda pid: [p for p in self.loads if p not in (pid, 501)])
        return self

    def spent_s(self, pid: int) -> float:
        # What the kernel tells is whole ticks of 10 ms.
        return round(self.loads[pid] * self.clock.passed_s, 2)

    def process(self, pid: int | None = None) -> SimpleNamespace:
        def memory_info() -> SimpleNamespace:
            return SimpleNamespace(rss=0 if pid in self.ended else self.resident)

        def cpu_times() -> SimpleNamespace:
            if pid in self.ended:
                raise psutil.NoSuchProcess(pid or 0)
            # The driver has run before; what the launch starts begins with nothing.
            before_s = 50.0 if pid == os.getpid() else 0.0
            return SimpleNamespace(user=before_s + self.spent_s(pid or 0), system=0.0)

        return SimpleNamespace(pid=pid, memory_info=memory_info, cpu_times=cpu_times)

    def cpu_times(self) -> Times:
        passed_s = 0.0 if self.stands_still else self.clock.passed_s
        busy = round((sum(self.loads.values()) + self.others) * passed_s, 2)
        return Times(1000.0 + busy, 0.0, 0.0, 0.0, 0.0, 9000.0 + CORES * passed_s - busy, 0.0, 0.0)


def sampled(folder: Path, clock: Clock) -> list[HostSample]:
    source = Host(clock.began_s, RankPids(folder, range(1)), clock=clock)
    Sampler(clock.began_s, [source], clock=clock, stop=clock).run()
    assert {s.metric for s in source.samples} <= METRICS.keys()
    return source.samples


@pytest.mark.parametrize("others", [0.0, 0.03, 1.3])
def test_what_others_compute_is_what_is_left_of_the_hosts_time(monkeypatch, tmp_path, others):
    clock = Clock(3.0)
    FakeHost(clock, others).install(monkeypatch)
    (tmp_path / "pid0").write_text("501")
    samples = sampled(tmp_path, clock)
    shares = [s.value for s in samples if s.metric == "other_cpu_share"]
    assert len(shares) == 29  # the first reading has no time that it could be a share of
    assert all(share is not None and share >= 0 for share in shares)
    # Rounding to ticks moves shares between readings; their sum it moves by a tick of each process at most.
    used_s = sum(shares) * PERIOD_S * CORES
    assert used_s == pytest.approx(others * 2.9, abs=0.04)
    assert [s.value for s in samples if s.metric == "rss_bytes" and s.rank == 0] == [100.0] * 30


def test_launches_of_one_driver_that_take_turns_are_no_load_to_each_other(monkeypatch, tmp_path):
    clock, ab, partner = Clock(3.0), 77, 503
    faked = FakeHost(clock, others=0.4).install(monkeypatch)
    faked.loads |= {ab: 0.1, partner: 1.0}
    children = {ab: [os.getpid(), 501, 502, partner]}
    monkeypatch.setattr(host, "descendants", lambda pid: children.get(pid, []))
    (tmp_path / "pid0").write_text("501")
    source = Host(clock.began_s, RankPids(tmp_path, range(1)), ours=ab, clock=clock)
    Sampler(clock.began_s, [source], clock=clock, stop=clock).run()
    shares = [s.value for s in source.samples if s.metric == "other_cpu_share"]
    assert sum(shares) * PERIOD_S * CORES == pytest.approx(0.4 * 2.9, abs=0.06)


def test_a_rank_that_has_ended_holds_an_unknown_amount_and_that_is_said_once(monkeypatch, tmp_path):
    clock = Clock(0.6)
    faked = FakeHost(clock, others=0.0).install(monkeypatch)
    (tmp_path / "pid0").write_text("501")
    wait = clock.wait

    def waiting(timeout: float) -> bool:
        faked.ended = {501} if clock.passed_s > 0.25 else set()
        return wait(timeout)

    clock.wait = waiting  # type: ignore[method-assign]
    rows = [(round(s.t_s, 1), s.value, s.reason) for s in sampled(tmp_path, clock) if s.rank == 0]
    assert rows == [(0.0, 100.0, None), (0.1, 100.0, None), (0.2, 100.0, None), (0.3, 100.0, None), (0.4, None, ENDED)]


@pytest.mark.alone
def test_an_allocation_is_seen_with_its_size_at_its_time(tmp_path):
    """A model that takes 256 MiB in a known step and keeps them; the step clock says when that step was."""
    case = Case(
        strategy="ddp", model="memory_helpers:grabbing", device="cpu", backend="gloo", data="synthetic", global_batch=8,
        world_size=2,
    )  # fmt: skip
    protocol = Protocol(warmup=2, steps=memory_helpers.GRABS_IN + 5, launches=1, instrumented=0)
    seen = launch(LaunchSpec.of(case, protocol, deadline_s=GUARD_S))
    assert seen.status is Status.OK, seen.failure

    gathered = fake.write(tmp_path / "r.db", [seen])
    known = session_data(gathered)
    timeline, ran = memory_timeline(known, 1), phases(known.facts[1])
    steps = [s.value for s in seen.samples if s.metric == "step_s" and s.rank == 0]
    begin_s = ran[Phase.WARMUP][0] + sum(steps[: memory_helpers.GRABS_IN])
    end_s = begin_s + steps[memory_helpers.GRABS_IN]
    for place in ("rank 0", "rank 1"):
        line = timeline[(timeline["place"] == place) & (timeline["t_s"] > ran[Phase.WARMUP][1])]
        # On a busy host filling takes as long as the step.
        (found,) = allocations(line, 100 * MIB, pause_s=end_s - begin_s)
        assert found.bytes == pytest.approx(memory_helpers.GRABBED_BYTES, rel=0.02)
        # Between the last reading before the step and the first after it. On a busy host, a reading may be made at any
        # time between its own time stamp and the next one, so the last reading before the step is the second to last.
        assert found.after_s >= line.loc[line["t_s"] < begin_s, "t_s"].iloc[-2]
        assert found.until_s <= line.loc[line["t_s"] > end_s, "t_s"].iloc[0]
    # The same clock: phases follow one another, and the launch's readings begin where it began.
    assert 0 < ran[Phase.WARMUP][0] < ran[Phase.WARMUP][1] <= ran[Phase.MEASURE][1] < seen.wall_s
    assert seen.facts["sampler"]["cpu_s"] < 0.1 * seen.wall_s
    assert seen.facts["sampler"]["unread"] == {}
