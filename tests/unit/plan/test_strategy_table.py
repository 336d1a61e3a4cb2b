"""A strategy is its function and its entry in the table. A test names other places that lack it."""

from __future__ import annotations

import pytest

from parabench.plan.case import Case
from parabench.plan.suite import load_suite
from parabench.records import declared
from parabench.strategies import OPTIONAL, STRATEGIES


@pytest.mark.parametrize("field", ["splits", "color"])
def test_strategy_entries_are_complete(field: str) -> None:
    lacking = [name for name, entry in STRATEGIES.items() if not getattr(entry, field)]
    assert not lacking, f"strategies/__init__.py: give {', '.join(lacking)} {field}=... (see StrategyEntry)"


def test_the_suite_of_strategies_compares_all_of_them() -> None:
    compared = {name for sweep in load_suite("strategies").sweeps for name in sweep.axes["strategy"]}
    lacking = [name for name in STRATEGIES if name not in compared]
    assert not lacking, f"suites/strategies.py: add sweep(strategy={lacking}, world_size=(2, 4))"


def test_each_axis_has_a_role_or_strategies_that_have_it() -> None:
    """Without either, every strategy would be measured with each of its values, and nothing would differ."""
    roles = {name: each.field.role for name, each in declared(Case).items()}
    lacking = [name for name, role in roles.items() if not role and name not in OPTIONAL]
    assert not lacking, f"give {', '.join(lacking)} a role in plan/case.py, or add it to axes in strategies/__init__.py"
    assert not [name for name in OPTIONAL if roles[name]], "an axis of some strategies has no role"
