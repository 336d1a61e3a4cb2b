"""A comparison of two machines as a person would say it, and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import to_builtins

from parabench.analysis.compare.across import Across, Common
from parabench.analysis.compare.ratios import Ratio
from parabench.analysis.session import Origin
from parabench.analysis.stats.geometric import Mean
from parabench.analysis.text import format
from parabench.analysis.text.compare import SCHEMA

# What the ratios of a case are of, in a table.
RATIOS = {"step_time": "step", "per_joule": "per joule", "per_gb": "per GB"}


def sentence(of: Across) -> str:
    """The ratios of step time, tokens per joule and tokens/s per GB, and what they leave out."""
    return " ".join(sentences(of))


def sentences(of: Across) -> list[str]:
    """The same, sentence by sentence."""
    sides = f"On candidate ({of.candidate_hardware})", f"base ({of.base_hardware})"
    if of.step_time.ratio is None:
        said = [f"No case succeeded on both sides, so {sides[1]} cannot be compared with candidate "
                f"({of.candidate_hardware}): {of.step_time.reason}."]  # fmt: skip
    else:
        said = [
            f"{sides[0]} a step takes {format.times(of.step_time.ratio)} times as long as on {sides[1]}"
            f"{_over(of.step_time)}.",
            _gives("Tokens per joule", of.per_joule, of.step_time.cases),
            _gives("Tokens/s per GB of peak memory", of.per_gb, of.step_time.cases),
        ]
    apart = [
        f"{sum(case.side == side for case in of.alone)} only in {side}"
        for side in ("base", "candidate")
        if any(case.side == side for case in of.alone)
    ]
    failed = sum(case.step_time.ratio is None for case in of.cases)
    left = apart + ([f"{failed} that failed on a side"] if failed and of.step_time.ratio else [])
    return said + ([f"Left out: {', '.join(left)}."] if left else [])


def _gives(what: str, mean: Mean, cases: int) -> str:
    """A further ratio; of how many cases only where it is of others than the step."""
    if mean.ratio is None:
        return f"{what}: unknown: {mean.reason}."
    return f"{what}: {format.times(mean.ratio)} times{_over(mean) if mean.cases != cases else _ends(mean)}."


def _over(mean: Mean) -> str:
    cases = f"geometric mean of {mean.cases} cases" if mean.cases > 1 else "in 1 case"
    return f", {cases}{_ends(mean)}"


def _ends(mean: Mean) -> str:
    return f" (95 %: {interval(mean)})" if mean.low is not None else f" (no interval: {mean.reason})"


def command(origins: Iterable[Origin]) -> str:
    """What makes this comparison again."""
    return shlex.join(["parabench", "compare", *(origin.at for origin in origins), "--across-hardware"])


def interval(of: Mean | Ratio) -> str:
    """'0.40 to 0.42', with more digits where the ends would read the same."""
    if of.low is None or of.high is None:
        return format.UNKNOWN
    said = [
        (format.times(of.low), format.times(of.high)),
        *((format.digits(of.low, n), format.digits(of.high, n)) for n in (3, 4)),
    ]
    low, high = next((ends for ends in said if ends[0] != ends[1]), said[0])
    return f"{low} to {high}"


def value(number: float | None) -> str:
    """A number with three digits; a dash where there is none."""
    return format.digits(number) if format.known(number) else "–"


def lines(of: Across) -> list[str]:
    """The whole comparison as lines of text."""
    return [
        *format.in_lines(sentences(of)),
        *(f"hardware: {difference}" for difference in of.hardware),
        *(f"software: {difference}" for difference in of.software),
        *format.warnings(of.findings),
        *(f"{case.label}: {'; '.join(_case(case))}" for case in of.cases),
        *(f"only in {case.side}: {case.label}: {case.reason}" for case in of.alone),
    ]


def to_dict(of: Across) -> dict[str, Any]:
    """As JSON can hold it (docs/reference/json.md): unknown is null."""
    fields: dict[str, Any] = to_builtins(of)
    return {"schema": SCHEMA, "kind": "across hardware", "sentence": sentence(of)} | fields


def _case(case: Common) -> Iterator[str]:
    step_time = case.step_time
    if step_time.ratio is None:
        yield step_time.reason
        return
    yield f"{format.milliseconds(step_time.base)} -> {format.milliseconds(step_time.candidate)}, {_factor(step_time)}"
    for ratio, name in ((case.per_joule, RATIOS["per_joule"]), (case.per_gb, RATIOS["per_gb"])):
        yield f"{name} {_factor(ratio) if ratio.ratio is not None else f'unknown ({ratio.reason})'}"


def _factor(ratio: Ratio) -> str:
    said = f"{format.times(ratio.ratio or 0)} times"
    return f"{said} (95 %: {interval(ratio)})" if ratio.low is not None else f"{said} (no interval: {ratio.reason})"
