"""A strategy is its function and its entry in the table; what else must know of it is named where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parabench.plan.case import Case
from parabench.plan.suite import load_suite
from parabench.strategies import STRATEGIES
from parabench.strategies.snippet import snippet


def test_every_strategy_has_a_colour_of_its_own() -> None:
    lacking = [name for name, entry in STRATEGIES.items() if entry.color is None]
    assert not lacking, f"strategies/__init__.py: give {', '.join(lacking)} color=..., one that no other has"
    assert len({entry.color for entry in STRATEGIES.values()}) == len(STRATEGIES)


def test_every_strategy_has_its_lines_of_code() -> None:
    lacking = [name for name, entry in STRATEGIES.items() if not entry.code]
    assert not lacking, (
        f"strategies/__init__.py: give {', '.join(lacking)} code=(...), the lines of a user's own script"
    )


def test_a_strategy_without_lines_says_where_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "zero2", replace(STRATEGIES["zero2"], code=()))
    assert "No line does zero2: how it is done stands in parabench/strategies/fsdp.py." in snippet(
        Case(strategy="zero2", world_size=2)
    )


def test_the_suite_of_strategies_compares_all_of_them() -> None:
    compared = {name for sweep in load_suite("strategies").sweeps for name in sweep.axes["strategy"]}
    lacking = [name for name in STRATEGIES if name not in compared]
    assert not lacking, f"suites/strategies.py: add sweep(strategy={lacking}, world_size=(2, 4))"
