"""Reductions overlap with backward: two threads that wait for each other show it without a clock."""

from __future__ import annotations

from pathlib import Path

import overlap_helpers
import ranks_helpers
from parabench.plan.case import Case

CASE = Case(algorithm="overlap_helpers:MEETS", world_size=2, device="cpu", backend="gloo")


def test_backward_continues_during_a_reduction(tmp_path: Path) -> None:
    assert ranks_helpers.complaints_of_ranks(overlap_helpers.backward_goes_on, CASE, tmp_path) == [[], []]
