"""A gate for a pull request: the verdict, what changed, and the rest to unfold."""

from __future__ import annotations

from parabench.analysis.compare.gate import CaseResult, Comparison
from parabench.analysis.compare.rule import Outcome, Verdict
from parabench.analysis.text import compare as compare_words
from parabench.analysis.text import format
from parabench.report.output.markdown import LIMIT, SENTENCE, Rows, code, differing, findings, fitted, sides, text

_MARK = {Verdict.REGRESSION: "✗", Verdict.NO_REGRESSION: "✓", Verdict.INCONCLUSIVE: "?"}
_HEAD = ("case", "outcome", "base", "candidate", "change", "95 %", "upper bound")


def render(of: Comparison, limit: int = LIMIT) -> str:
    """The Markdown text, of at most `limit` characters."""
    same = [_cells(row) for row in of.rows if row.outcome is Outcome.SAME]
    return fitted(
        [
            f"## {_MARK[of.verdict]} {of.verdict.capitalize()}\n\n",
            f"{text(of.sentence(), SENTENCE)}\n\n",
            Rows(_HEAD, [_cells(row) for row in of.rows if row.outcome is not Outcome.SAME], "cases are", texts=(1,)),
            Rows(
                _HEAD,
                same,
                "cases are",
                f"{format.count(len(same), 'case')} without slowdowns above {compare_words.tolerated(of)}",
                (1,),
            ),
            differing("What differs besides", of.differences),
            *findings(of.findings),
            Rows(
                ("case", "base", "candidate"),
                [(text(row.label), _ids(row.base_launches), _ids(row.candidate_launches)) for row in of.rows],
                "cases are",
                "Launches that the numbers are made of, by id",
                (1, 2),
            ),
            *sides(of.origins),
            f"To see it again:\n\n{code(compare_words.command(of))}",
        ],
        limit,
    )


def _ids(launches: tuple[int, ...]) -> str:
    return text(compare_words.ids(launches))


def _cells(row: CaseResult) -> tuple[str, ...]:
    label = f"{text(row.label)}: {text(row.note)}" if row.note else text(row.label)
    times = (
        format.milliseconds(seconds) if seconds is not None else "–"
        for seconds in (row.base_step_time_s, row.candidate_step_time_s)
    )
    change = format.signed(row.ratio - 1) if row.ratio is not None else "–"
    upper = format.signed(row.upper - 1) if row.upper is not None else "–"
    outcome = f"**{row.outcome}**" if row.outcome in (Outcome.SLOWER, Outcome.BROKE) else str(row.outcome)
    return label, outcome, *times, change, compare_words.interval(row) or "–", upper
