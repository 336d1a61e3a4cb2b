"""Two machines beside each other as a page."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis.compare.across import Across
from parabench.analysis.text import across as across_words
from parabench.report.data.columns import packed
from parabench.report.data.comparison import RATIOS, mean_data, side_styles
from parabench.report.page import fill
from parabench.report.sections.sides import difference_section, explore, finding_groups, launch_section, side_section
from parabench.report.spec import Section


def render(of: Across) -> str:
    """The page as text."""
    sections = [
        _section(
            of,
            "latency",
            "Step latency",
            "Left of the line a step takes less time on candidate. Bars are 95 % intervals, that of the geometric mean "
            "with blocks of launches as its unit: what a block's launches share is in all cases at once; it is filled "
            "where that tells it from 1. Axes are logarithmic.",
            "sides_ratios",
        ),
        _section(
            of,
            "per_joule",
            "Tokens per joule",
            "Right of the line a joule trains more tokens on candidate.",
            "sides_per_joule",
        ),
        _section(
            of,
            "per_gb",
            "Tokens/s per GB of memory",
            "Right of the line a GB (10⁹ bytes) of peak memory, of the rank that holds most, trains more on candidate.",
            "sides_per_gb",
        ),
    ]
    return fill(
        "across.html",
        sections,
        data=_data(of),
        comparison=of,
        tone="",
        table="sides",
        means=[
            (name, across_words.times(mean.ratio), across_words.interval(mean))
            for name, mean in (("a step takes", of.latency), ("tokens per joule", of.per_joule),
                               ("tokens/s per GB", of.per_gb))
            if mean.ratio is not None
        ],
        findings=finding_groups(of.findings),
        differences=[
            difference_section("Hardware that differs", of.hardware, "hardware"),
            difference_section("Software that differs", of.software, "software"),
        ],
        launches=launch_section(
            (case.label, (case.latency.base_launches, case.latency.candidate_launches)) for case in of.cases
        ),
        sides=side_section(of.origins),
        command=across_words.command(of),
        explore=explore(of.origins),
    )  # fmt: skip


def _section(of: Across, name: str, title: str, how: str, draw: str) -> Section:
    mean = getattr(of, name)
    known = mean.ratio is not None
    return Section(name.replace("_", "-"), title, how, [], f"Unknown: {mean.reason}.", draw=draw if known else "")


def _data(of: Across) -> dict[str, Any]:
    """The data of the page, as `several_data` has it, of the common cases."""
    columns: dict[str, Any] = {
        "case_id": [case.candidate_case for case in of.cases],
        "label": [case.label for case in of.cases],
        "work": 0,
        "reason": [case.latency.reason for case in of.cases],
        "devices": [", ".join(dict.fromkeys((case.base_device, case.candidate_device))) for case in of.cases],
        "latency_s.0": [case.latency.base for case in of.cases],
        "latency_s.1": [case.latency.candidate for case in of.cases],
    }
    for column, name in RATIOS.items():
        ratios = [getattr(case, name) for case in of.cases]
        columns |= {
            f"{column}.1": [ratio.ratio for ratio in ratios],
            f"{column}_low.1": [ratio.low for ratio in ratios],
            f"{column}_high.1": [ratio.high for ratio in ratios],
        }
    means = {column: [mean_data(getattr(of, name))] for column, name in RATIOS.items()}
    return {
        "cases": packed(pd.DataFrame(columns)),
        "sides": side_styles(["base", "candidate"]),
        "works": [{"name": "", "unit": "", "means": means}],
    }
