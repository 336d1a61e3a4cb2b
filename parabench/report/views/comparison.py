"""Two or more stores or sessions beside each other: one HTML page."""

from __future__ import annotations

from pathlib import Path

from parabench.analysis.compare import across as machines
from parabench.analysis.compare.overall import Overall, overall
from parabench.analysis.compare.several import Several, several
from parabench.analysis.compare.sides import read_several
from parabench.analysis.compare.warnings import several_findings
from parabench.analysis.environment.diff import apart, facts
from parabench.analysis.text import across, comparison, comparison_next
from parabench.files import write_whole
from parabench.report.data.comparison import several_data, side_styles
from parabench.report.page import fill
from parabench.report.sections.comparison import several_tabs
from parabench.report.sections.sides import explore


def write_comparison(stores: list[tuple[Path, str | None]], out: Path, template_folder: Path | None = None) -> Path:
    """Write the comparison of sessions (None: its store's newest) to the file `out`, whole or not at all. What
    `template_folder` holds of the files of `reports/` stands for ours.

    Raises UsageError for fewer than two sessions, for one twice, for none such or one that trained nothing, when a
    template is wrong, or when `out` cannot be written.
    """
    write_whole(out, render(several(read_several(stores)), template_folder), "page", "give another file for the report")
    return out


def render(of: Several, template_folder: Path | None = None) -> str:
    """The page as text."""
    works = overall(of)
    told = facts(of.sides)
    tabs = several_tabs(of, works, told)
    names = [side.role for side in of.sides]
    return fill(
        "several.html",
        [section for tab in tabs for section in tab.sections],
        template_folder,
        data=several_data(of, works),
        tabs=tabs,
        names=names,
        colours=[style["color"] for style in side_styles(names)],
        apart=[apart(told, at) for at in range(len(names))],
        answers=[_of_machines(of)] if of.launches_alone else [_answer(each) for each in works],
        origins=of.origins,
        started=max(origin.started_utc for origin in of.origins),
        paired=None if of.launches_alone else [against.paired for against in of.against],
        findings=several_findings(of),
        unfinished=[name for name, origin in zip(names, of.origins, strict=True) if not origin.finished_utc],
        next=comparison_next.steps(of, works),
        command=across.command(of.origins) if of.launches_alone else explore(of.origins),
    )


def _answer(each: Overall) -> dict[str, object]:
    """What the page says of one work: sentences, and the numbers that matter as (name, number, unit, interval)."""
    numbers = [
        (f"a step on {each.names[at]}, beside {each.names[0]}", *comparison.said(each.means[at - 1]))
        for at in each.others
    ]
    return {"heading": each.heading, "sentences": comparison.sentences(each), "numbers": numbers, "of": each}


def _of_machines(of: Several) -> dict[str, object]:
    """What the text says of two machines: one mean over all cases that both measured, whatever their work."""
    found = machines.across(of)
    means = {"a step takes": found.step_time, "tokens per joule": found.per_joule, "tokens/s per GB": found.per_gb}
    numbers = [(name, *comparison.said(mean)) for name, mean in means.items() if mean.ratio is not None]
    return {"heading": "", "sentences": [found.sentence()], "numbers": numbers, "of": None}
