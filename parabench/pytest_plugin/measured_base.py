"""A base that is measured anew, in turns with what is here: `--parabench-against SIDE`.

SIDE is what it is for `parabench ab`: its side a. This environment is side b.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from rich.console import Console

from parabench.ab.driver import AbRequest, Turns, check_side, conclude, measure
from parabench.ab.variant import read_variant
from parabench.analysis.compare.sides import side_of
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.pytest_plugin.judged import Judged
from parabench.pytest_plugin.suite_run import SuiteRun, end_pytest
from parabench.store.results import load
from parabench.store.store import STORE_NAME

AGAINST = "--parabench-against"


@dataclass(frozen=True, kw_only=True)
class MeasuredBase:
    """`side` in words."""

    side: str

    @classmethod
    def found(cls, side: str) -> MeasuredBase:
        """The base of that side, which was started once. Raises pytest.UsageError where it is not there or does not
        fit."""
        try:
            check_side(read_variant("a", side, AGAINST))
        except UsageError as error:
            raise pytest.UsageError(f"parabench: {AGAINST}: {format.error_line(error)}") from error
        return cls(side=side)

    def judge(self, run: SuiteRun, tolerance: float, alpha: float) -> Judged:
        """Measure the suite's selected cases on both sides in turns, and compare them. Raises UsageError; ends pytest
        when stopped."""
        request = AbRequest(
            a=self.side,
            b="",
            run=run.request,
            tolerance=tolerance,
            alpha=alpha,
            cases={case.id for case in run.plan.cases},
        )
        found: list[Judged] = []

        def compared(turns: Turns) -> int:
            comparison = conclude(request, turns)
            path = request.run.out / STORE_NAME
            candidate = side_of(load(path), turns.sessions[1], "candidate")
            shown = turns.variants[0].shown() or "this environment too"
            title = f"{candidate.session.suite}: {comparison.candidate} against {comparison.base} ({shown}) of {path}"
            found.append(Judged(comparison, candidate, title))
            return comparison.verdict.exit_code

        measure(request, Console(), compared, stopped=end_pytest)
        return found[0]
