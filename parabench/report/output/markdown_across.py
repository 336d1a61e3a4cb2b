"""Two machines beside each other for a pull request or a wiki."""

from __future__ import annotations

from parabench.analysis.compare.across import Across, Common
from parabench.analysis.compare.ratios import Ratio
from parabench.analysis.text import across as across_words
from parabench.analysis.text import format
from parabench.report.output.markdown import LIMIT, SENTENCE, Rows, code, differing, findings, fitted, sides, text

_HEAD = ("case", "base", "candidate", "step", "95 %", "per joule", "95 %", "per GB", "95 %")


def render(of: Across, limit: int = LIMIT) -> str:
    """The Markdown text, of at most `limit` characters."""
    return fitted(
        [
            f"## {text(of.candidate_hardware)} against {text(of.base_hardware)}\n\n",
            f"{text(of.sentence(), SENTENCE)}\n\n",
            Rows(_HEAD, [_cells(case) for case in of.cases], "cases are"),
            "Ratios are candidate / base: of a step's time, where less is better; of tokens per joule and of tokens/s "
            "per GB of peak memory, where more is better.\n\n",
            Rows(
                ("case", "side", "why"),
                [(text(each.label), each.side, text(each.reason)) for each in of.alone],
                "cases are",
                f"{format.count(len(of.alone), 'case')} without a partner",
                (1, 2),
            ),
            differing("Hardware that differs", of.hardware),
            differing("Software that differs", of.software),
            *findings(of.findings),
            *sides(of.origins),
            f"To see it again:\n\n{code(across_words.command(of.origins))}",
        ],
        limit,
    )


def _cells(case: Common) -> tuple[str, ...]:
    step_time = case.step_time
    label = text(case.label) if step_time.ratio is not None else f"{text(case.label)}: {text(step_time.reason)}"
    times = (format.milliseconds(each) if each is not None else "–" for each in (step_time.base, step_time.candidate))
    return (label, *times, *_ratio(step_time), *_ratio(case.per_joule), *_ratio(case.per_gb))


def _ratio(ratio: Ratio) -> tuple[str, str]:
    if ratio.ratio is None:
        return "–", "–"
    return across_words.times(ratio.ratio), across_words.interval(ratio) if ratio.low is not None else "–"
