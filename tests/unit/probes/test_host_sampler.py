"""The sampler of the host: memory of ranks, and CPU time of other processes."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fake_nvml import Clock
from parabench.metrics import METRICS
from parabench.probes import sampler
from parabench.probes.sampler import ENDED, PERIOD_S, Host, RankPids, Sampler
from parabench.store.record import HostSample

CORES = 4
Times = namedtuple("Times", "user nice system irq softirq idle iowait steal")


class FakeHost:
    """A host of four cores. Rank 0 (501), its worker (502) and another process use shares of a core each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock, others: float) -> None:
        self.clock = clock
        self.loads = {os.getpid(): 0.0, 501: 1.0, 502: 0.5}
        self.others = others
        self.ended: set[int] = set()
        self.resident = 100.0
        monkeypatch.setattr(sampler.psutil, "Process", self.process)
        monkeypatch.setattr(sampler.psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(sampler, "descendants", lambda pid: [p for p in self.loads if p not in (pid, 501)])

    def spent_s(self, pid: int) -> float:
        # The kernel reports ticks of 10 ms.
        return round(self.loads[pid] * self.clock.passed_s, 2)

    def process(self, pid: int | None = None) -> SimpleNamespace:
        def memory_info() -> SimpleNamespace:
            return SimpleNamespace(rss=0 if pid in self.ended else self.resident)

        def cpu_times() -> SimpleNamespace:
            if pid in self.ended:
                raise psutil.NoSuchProcess(pid or 0)
            # The driver has run before the launch.
            before_s = 50.0 if pid == os.getpid() else 0.0
            return SimpleNamespace(user=before_s + self.spent_s(pid or 0), system=0.0)

        return SimpleNamespace(pid=pid, memory_info=memory_info, cpu_times=cpu_times)

    def cpu_times(self) -> Times:
        busy = round((sum(self.loads.values()) + self.others) * self.clock.passed_s, 2)
        return Times(1000.0 + busy, 0.0, 0.0, 0.0, 0.0, 9000.0 + CORES * self.clock.passed_s - busy, 0.0, 0.0)


def sampled(folder: Path, clock: Clock) -> list[HostSample]:
    source = Host(clock.began_s, RankPids(folder, range(1)), clock=clock)
    Sampler(clock.began_s, [source], clock=clock, stop=clock).run()
    assert {s.metric for s in source.samples} <= METRICS.keys()
    return source.samples


@pytest.mark.parametrize("others", [0.0, 0.03, 1.3])
def test_host_reports_the_cpu_share_of_other_processes(monkeypatch, tmp_path, others):
    clock = Clock(3.0)
    FakeHost(monkeypatch, clock, others)
    (tmp_path / "pid0").write_text("501")
    samples = sampled(tmp_path, clock)
    shares = [s.value for s in samples if s.metric == "other_cpu_share"]
    assert len(shares) == 29  # the first reading has no share
    assert all(share is not None and share >= 0 for share in shares)
    # Rounding to ticks changes the sum of the shares by one tick per process at most.
    used_s = sum(shares) * PERIOD_S * CORES
    assert used_s == pytest.approx(others * 2.9, abs=0.04)
    assert [s.value for s in samples if s.metric == "rss_bytes" and s.rank == 0] == [100.0] * 30


def test_ended_rank_has_one_unknown_reading(monkeypatch, tmp_path):
    clock = Clock(0.6)
    faked = FakeHost(monkeypatch, clock, others=0.0)
    (tmp_path / "pid0").write_text("501")
    wait = clock.wait

    def waiting(timeout: float) -> bool:
        faked.ended = {501} if clock.passed_s > 0.25 else set()
        return wait(timeout)

    clock.wait = waiting  # type: ignore[method-assign]
    rows = [(round(s.t_s, 1), s.value, s.reason) for s in sampled(tmp_path, clock) if s.rank == 0]
    assert rows == [(0.0, 100.0, None), (0.1, 100.0, None), (0.2, 100.0, None), (0.3, 100.0, None), (0.4, None, ENDED)]
