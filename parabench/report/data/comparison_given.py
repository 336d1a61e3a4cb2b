"""What a joule and a gigabyte give on each of several sides."""

from __future__ import annotations

from collections.abc import Sequence

from parabench.analysis.compare.overall import Overall
from parabench.analysis.stats.geometric import Mean
from parabench.analysis.text import across, format
from parabench.report.spec import Section


def given_section(works: Sequence[Overall], at: str, name: str, title: str, what: str, rate: str = "") -> Section:
    """The number `name` of `Overall.gives` beside the first side, each work by itself; `rate` follows its unit."""
    some = any(mean.ratio is not None for work in works for mean in work.gives[name])
    lead = " ".join(_given(work, name, what, rate) for work in works)
    if not some:
        return Section(at, title, "", [], f"What a {what} gives is unknown. {lead}".rstrip())
    first = works[0].names[0]
    return Section(
        at,
        title,
        f"Right of the line it gives more than on {first}. The geometric mean is filled where its interval tells it "
        "from 1.",
        [],
        "No selected case has this number on two sides, so there is nothing to draw.",
        lead=lead,
        draw=f"sides_{name}",
    )


def _given(work: Overall, name: str, what: str, rate: str) -> str:
    """In words: the means that are known, and why others are not."""
    means = list(zip(work.names[1:], work.gives[name], strict=True))
    said = [
        f"{across.times(mean.ratio)} times on {role} ({_over(mean)})" for role, mean in means if mean.ratio is not None
    ]
    unit = format.unit_of(work.work["seq_len"])
    told = [f"Beside {work.names[0]}, a {what} gives {format.joined(said)} the {unit}{rate}."] if said else []
    why: dict[str, list[str]] = {}
    for role, mean in means:
        if mean.ratio is None:
            why.setdefault(mean.reason, []).append(role)
    told += [f"{'Unknown on ' if said else ''}{format.joined(roles)}: {reason}." for reason, roles in why.items()]
    return " ".join([*([f"{work.heading[0].upper()}{work.heading[1:]}:"] if work.heading else []), *told])


def _over(mean: Mean) -> str:
    over = f"geometric mean of {format.count(mean.cases, 'case')}" if mean.cases > 1 else "in 1 case"
    return f"{over}; 95 %: {across.interval(mean)}" if mean.low is not None else f"{over}; no interval"
