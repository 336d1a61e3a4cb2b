"""Reductions overlap with backward: two threads that wait for each other show it without a clock."""

from __future__ import annotations

import json
from pathlib import Path

import overlap_helpers
import ranks_helpers
from guard import GUARD_S
from parabench.launch.processes import run_processes
from parabench.plan.case import Case

CASE = Case(algorithm="overlap_helpers:MEETS", world_size=2, device="cpu", backend="gloo")


def test_backward_continues_during_a_reduction(tmp_path: Path) -> None:
    arguments = (overlap_helpers.backward_goes_on, CASE, tmp_path)
    ended = run_processes(ranks_helpers.in_group, arguments, size=2, deadline_s=GUARD_S, logs=tmp_path / "logs")
    complaints = {path.stem: json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank*.json"))}
    assert complaints == {"rank0": [], "rank1": []}
    assert ended.ok
