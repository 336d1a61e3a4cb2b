"""Two machines beside each other as a page."""

from __future__ import annotations

from parabench.analysis.gate import across_words
from parabench.analysis.gate.across import Across
from parabench.pages.figures_compare import MOST_DOTS, ratio_panels
from parabench.pages.page import fill
from parabench.pages.section import Section
from parabench.pages.sections_sides import difference_section, finding_groups, launch_section, side_section


def render(of: Across) -> str:
    """The page as text."""
    sections = [
        _section(
            of,
            "latency",
            "Step latency",
            "Left of the line a step takes less time on candidate. Bars are 95 % intervals, that of the geometric mean "
            "with blocks of launches as its unit: what a block's launches share is in all cases at once. Axes are "
            "logarithmic.",
        ),
        _section(of, "per_joule", "Tokens per joule", "Right of the line a joule trains more tokens on candidate."),
        _section(
            of,
            "per_gb",
            "Tokens/s per GB of memory",
            "Right of the line a GB (10⁹ bytes) of peak memory, of the rank that holds most, trains more on candidate.",
        ),
    ]
    return fill(
        "across.html",
        sections,
        comparison=of,
        means=[
            (name, across_words.times(mean.ratio), across_words.interval(mean))
            for name, mean in (("a step takes", of.latency), ("tokens per joule", of.per_joule),
                               ("tokens/s per GB", of.per_gb))
            if mean.ratio is not None
        ],
        findings=finding_groups(of.findings),
        hardware=difference_section("Hardware that differs", of.hardware, "hardware"),
        software=difference_section("Software that differs", of.software, "software"),
        launches=launch_section(
            (case.label, case.latency.base_launches, case.latency.candidate_launches) for case in of.cases
        ),
        sides=side_section(of.origins),
        times=across_words.times,
        interval=across_words.interval,
        command=across_words.command(of),
    )  # fmt: skip


def _section(of: Across, name: str, title: str, how: str) -> Section:
    mean = getattr(of, name)
    known = sum(getattr(case, name).ratio is not None for case in of.cases)
    some = f" The first {MOST_DOTS} of {known} are drawn; the table has all." if known > MOST_DOTS else ""
    return Section(
        name.replace("_", "-"),
        title,
        f"{how}{some}",
        ratio_panels(of.cases, name, mean),
        f"Unknown: {mean.reason}.",
    )
