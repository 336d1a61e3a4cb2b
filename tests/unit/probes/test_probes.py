"""The hooks of a probe in the table, and its report."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from guard import GUARD_S
from parabench.launch.spec import LaunchSpec, RankEnv
from parabench.metrics import METRICS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import PROBES, CaseReport, Probe, ProbedRank, probe_classes
from parabench.registry import Entry
from parabench.strategies.base import RankInfo, StepMarker
from parabench.workloads import training
from paths import DOCS

CASE = Case(strategy="single", device="cpu", backend="gloo", data="synthetic", model="mlp", seq_len=1)
PAGE = DOCS / "explanation/instruments.md"

happened: list[Any] = []


class Watching(Probe):
    """Records its hooks, and the state of the rank."""

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        happened.append("made")

    def after_first_backward(self) -> None:
        happened.append(("backward", any(p.grad is not None for p in self.rank.module.parameters())))

    def after_first_step(self) -> None:
        happened.append(("optimizer", len(self.rank.optimizer.state) > 0))

    def before_measured(self) -> None:
        happened.append(("before", self.rank.clock.steps))

    def after_measured(self) -> None:
        happened.append(("after", self.rank.clock.steps))

    @contextmanager
    def instrumented(self, clock: StepMarker) -> Iterator[StepMarker]:
        happened.append(("on", self.rank.clock.steps))
        yield clock
        happened.append(("off", self.rank.clock.steps))

    def after_instrumented(self) -> None:
        self.rank.take_step()

    def report(self, report: CaseReport) -> None:
        report.numbers["watched"] = float(len(self.rank.clock.begins()))
        report.facts["watching"] = True


def test_train_calls_all_hooks_of_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBES, "watching", Entry(target=f"{__name__}:Watching", summary="a test's"))
    happened.clear()
    # The probe takes one additional step. The clock has room for it, because of the snapshot.
    protocol = Protocol(warmup=2, steps=3, instrumented=2, memory_snapshot=True)
    env = RankEnv(folder=tmp_path, timeout_s=GUARD_S)
    spec = LaunchSpec.of(CASE, protocol, GUARD_S)
    monkeypatch.delitem(PROBES, "profiler")
    report = training.train(spec, env, RankInfo(0, 1, torch.device("cpu"))).of(0)
    assert happened == [
        "made", ("backward", True), ("optimizer", True), ("before", 2), ("after", 5), ("on", 5), ("off", 7)
    ]  # fmt: skip
    assert report.numbers["watched"] == 9  # the starts of eight steps, and the end of the last
    assert report.facts["watching"]
    unknown = {*report.numbers, *(metric for _, metric, _ in report.readings)} - {"watched"} - METRICS.keys()
    assert not unknown, f"metrics.py: give METRICS {sorted(unknown)}, with unit and meaning"


def test_probes_of_the_table_exist_and_are_documented() -> None:
    assert all(issubclass(each, Probe) for each in probe_classes())
    described = PAGE.read_text()
    lacking = [name for name, entry in PROBES.items() if f"| `{name}` | {entry.summary} |" not in described]
    assert not lacking, f"{PAGE}: write a row | `name` | summary | when | of {', '.join(lacking)}"
