"""What became of a suite that was compared with a base, for its tests and for pytest's summary."""

from __future__ import annotations

from dataclasses import dataclass

from parabench.analysis.compare.gate import CaseResult, Comparison
from parabench.analysis.compare.rule import REGRESSIONS, Outcome
from parabench.analysis.session import SessionData
from parabench.analysis.text import compare as compare_text
from parabench.analysis.text import format


@dataclass(frozen=True)
class Judged:
    """A suite that was compared: `candidate` is what this run measured. `unselected` are the ids of the cases of the
    suite that it did not select, and that only the base has for that reason."""

    comparison: Comparison
    candidate: SessionData
    title: str
    unselected: frozenset[str] = frozenset()

    @property
    def rows(self) -> dict[str, CaseResult]:
        """What became of each case, by its id."""
        return {row.case_id: row for row in self.comparison.rows}

    @property
    def broke(self) -> dict[str, str]:
        """{case id: what it was and is now} of the cases that now fail."""
        return {
            case: format.one_line(compare_text.line(row))
            for case, row in self.rows.items()
            if row.outcome is Outcome.BROKE
        }

    @property
    def blind(self) -> set[str]:
        """The cases in which a slowdown of the tolerance is not ruled out: their tests have not shown anything.

        Where nothing was judged at all, or what the baseline has is gone from the suite, it is all that ran: no test
        of its own could say so.
        """
        comparison = self.comparison
        rows = [row for row in comparison.rows if row.outcome not in REGRESSIONS]
        gone = any(row.not_judged and row.outcome is Outcome.ONLY_BASE for row in rows)
        if not comparison.judged or gone:
            return {row.case_id for row in rows}
        return {row.case_id for row in rows if row.not_judged or row.outcome is Outcome.UNCLEAR}

    def lines(self) -> list[str]:
        """Everything but the verdict and the cases that stayed the same; several that were not selected are one."""
        comparison = self.comparison
        unselected = [row.label for row in comparison.rows if row.case_id in self.unselected]
        lines = [*map(str, comparison.differences)]
        lines += [f"warning: {finding.message} {finding.advice}" for finding in comparison.findings]
        lines += [
            compare_text.line(row)
            for row in comparison.rows
            if row.case_id not in self.unselected and (row.outcome is not Outcome.SAME or row.case_id in self.blind)
        ]
        if unselected:
            which = format.listed(unselected, most=len(unselected))
            lines.append(f"only in base, because not selected in this run: {which}")
        return lines
