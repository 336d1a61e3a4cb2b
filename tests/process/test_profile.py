"""`--profile` writes a trace of every rank, and `--memory-snapshot` a snapshot on CUDA; both are in no statistic."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fake_launch import FakeLauncher, run_fake
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import CaseReport
from parabench.probes.profiler import ProfilerProbe
from parabench.session.request import Request
from parabench.store.record import Phase
from parabench.store.results import load
from parabench.strategies.base import RankInfo
from real_launches import succeeded

PROTOCOL = Protocol(warmup=2, steps=2, instrumented=1, profile=True)


def test_profiled_step_has_traces_and_is_in_no_statistic(tmp_path: Path) -> None:
    case = Case(algorithm="ring", world_size=2, device="cpu", backend="gloo")
    launched = succeeded(case, PROTOCOL, traces=tmp_path / "traces")
    assert len(launched.step_times()) == PROTOCOL.alone().all_steps == 6
    assert len(launched.step_times(Phase.MEASURE)) == 2
    assert {s.step for s in launched.samples if s.phase == Phase.PROFILE} == {5}
    assert {s.step for s in launched.samples if s.phase == Phase.INSTRUMENT} == {4}
    # The profiled step is not an instrumented one, and trains like any other.
    assert {row.step for row in (*launched.spans, *launched.collectives)} == {4}
    assert {s.step for s in launched.samples if s.metric == "loss"} == set(range(6))

    written = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert [each["file"] for each in launched.facts["profile"]] == written
    for rank, name in enumerate(written):
        assert name.startswith(f"{case.id}-2")
        assert name.endswith(f"Z-rank{rank}.json.gz")
        events = json.loads(gzip.decompress((tmp_path / "traces" / name).read_bytes()))["traceEvents"]
        operators = [event for event in events if event.get("cat") == "cpu_op"]
        assert {"aten::addmm", "aten::_fused_adamw_"} <= {event["name"] for event in operators}
        # As torch.profiler marks a step where it has a schedule, with the number of this one.
        (marked,) = (each for each in events if str(each["name"]).startswith("ProfilerStep#") and each["ph"] == "X")
        assert marked["name"] == "ProfilerStep#5"
        # The ring adds on a separate thread.
        assert len({event["tid"] for event in operators}) > 1


def test_memory_snapshot_is_written_after_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: happened.append(how))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"12345"))
    rank: Any = SimpleNamespace(
        info=RankInfo(3, 4, torch.device("cuda", 0)), take_step=lambda: happened.append("step"),
        schedule=Protocol(memory_snapshot=True), traces=tmp_path / "case-then",
    )  # fmt: skip
    probe, report = ProfilerProbe(rank), CaseReport()
    probe.after_instrumented()
    assert happened == [{"stacks": "python"}, "step"]
    assert list(tmp_path.iterdir()) == []
    probe.report(report)
    assert report.rank_facts == {"memory_snapshot": {"file": "case-then-rank3.pickle", "bytes": 5}}
    assert happened[2:] == [{"enabled": None}]


SUITE = '"""Which?"""\nfrom parabench import sweep\nCASES = sweep(strategy="ddp", world_size=2, device="cpu")\n'


def test_cpu_run_reports_once_that_memory_snapshots_need_cuda(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SUITE)
    asked: dict[str, Any] = {"suite": str(tmp_path / "mine.py"), "argv": [], "out": tmp_path / "out", "launches": 1}
    asked |= {"steps": 3, "memory_snapshot": True, "profile": True}
    code, said = run_fake(Request.of(**asked), FakeLauncher())
    assert code == 0
    assert said.count("No memory snapshot is written") == 1
    results = load(tmp_path / "out" / "results.db")
    assert results.finding["code"].tolist().count("no_memory_snapshot") == 1
    protocol = json.loads(results.session["plan"].iloc[0])["protocol"]
    assert (protocol["profile"], protocol["memory_snapshot"]) == (True, False)
    assert run_fake(Request.of(**asked, resume=True), FakeLauncher())[0] == 0
