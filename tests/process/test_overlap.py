"""Reductions are under way while backward goes on: two threads that each wait for the other show it, no clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import overlap_helpers
import ranks_helpers
from guard import GUARD_S
from parabench.launch.processes import run_processes
from parabench.plan.case import Case

CASE = Case(algorithm="overlap_helpers:MEETS", world_size=2, device="cpu", backend="gloo")


@pytest.mark.parametrize("check", [overlap_helpers.the_caller_goes_on, overlap_helpers.backward_goes_on])
def test_a_collective_is_under_way_while_its_caller_goes_on(
    check: Callable[[int, int], Iterator[str]], tmp_path: Path
) -> None:
    ended = run_processes(
        ranks_helpers.in_group,
        (check, CASE, tmp_path),
        size=CASE.world_size,
        deadline_s=GUARD_S,
        logs=tmp_path / "logs",
    )
    complaints = {path.stem: json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank*.json"))}
    assert complaints == {f"rank{rank}": [] for rank in range(CASE.world_size)}
    assert ended.ok
