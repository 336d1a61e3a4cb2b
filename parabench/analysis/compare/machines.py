"""Two machines side by side (`compare --across-hardware`): ratios and their means, without a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Literal

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer, Columns, columns, keyed, tables
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.comparison import GIVES, STEP, Comparison, compare_sessions
from parabench.analysis.compare.gate import CASES, STEP_TIMES, differing
from parabench.analysis.compare.overall import answers, interval, overall
from parabench.analysis.compare.sides import check_distinct
from parabench.analysis.compare.warnings import across_findings, unfinished
from parabench.analysis.environment.diff import Difference, hardware_differences, hardware_name, software_differences
from parabench.analysis.numbers import work_text
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats.contrasts import Mean
from parabench.errors import UsageError
from parabench.store.results import records

TITLES = {STEP: "step", "per_joule": "per joule", "per_gb": "per GB"}
_QUANTITY = Literal["step_time", "per_joule", "per_gb"]
# The tables of the answer.
TABLES: dict[str, Columns] = {
    "sides": columns(Origin, side=str, hardware=str),
    "workloads": {
        "workload": str, "work": str, "best": str | None, "tied": tuple[str, ...], "lost": int, "mended": int,
        "cases": int, "shared": int,
    },
    "means": columns(Mean, workload=str, quantity=_QUANTITY),
    "outcomes": {"workload": str, "outcome": Outcome, "cases": int},
    "cases": {"label": str, "base_case_id": str | None, "candidate_case_id": str | None, "missing": str},
    "step_times": CASES,
    "ratios": {
        "label": str, "quantity": _QUANTITY, "base": float | None, "candidate": float | None, "ratio": float | None,
        "low": float | None, "high": float | None, "reason": str,
    },
    "differences": columns(Difference, kind=Literal["hardware", "software"]),
}  # fmt: skip


def compared(base: SessionData, candidate: SessionData) -> Comparison:
    """Return two machines side by side.

    Raises UsageError if both sides are the same session, or if they have no configuration in common.
    """
    check_distinct((base, candidate))
    of = compare_sessions((base, candidate))
    if not of.common(1):
        raise UsageError(
            f"{base.session.name} of {base.results.path} and {candidate.session.name} of {candidate.results.path} have "
            "no workload in common; measure the same suite with the same --set on both"
        )
    return of


def answer(of: Comparison) -> Answer:
    """Return the answer of a comparison of two machines. Configurations are ordered by their ratio."""
    base, candidate = of.sides
    works = overall(of)
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    rows["sides"] = [(side.origin, {"side": side.role, "hardware": hardware_name(side)}) for side in of.sides]
    for work in works:
        key, mean = {"workload": work.heading}, work.steps[0]
        faster, slower = of.names[::-1] if (mean.ratio or 1) < 1 else of.names
        named: dict[str, Any] = {"best": None, "tied": ()}
        if mean.low is not None and mean.high is not None:
            named = {"best": faster, "tied": (slower,) if mean.low <= 1 <= mean.high else ()}
        counts = {"lost": work.lost[0], "mended": work.mended[0], "cases": work.cases, "shared": mean.cases}
        rows["workloads"].append(key | {"work": work_text(work.work)} | named | counts)
        for quantity, means in work.means.items():
            rows["means"] += keyed(means, quantity=quantity, **key)
        rows["outcomes"] += [key | {"outcome": outcome, "cases": n} for outcome, n in work.changes[0].items()]
    steps = of.of(STEP).sort_values("ratio", kind="stable").rename(columns=STEP_TIMES)
    order = [*steps["row"], *(row for row in of.ids.index if row not in set(steps["row"]))]
    for row in order:
        there = [of.id(row, at) if of.measured.at[row, at] else None for at in range(2)]
        missing = of.why_missing(row, 0) or of.why_missing(row, 1)
        own = {"label": of.cases.at[row, "label"], "missing": missing}
        rows["cases"].append(own | {"base_case_id": there[0], "candidate_case_id": there[1]})
    for kind, found in (("hardware", hardware_differences), ("software", software_differences)):
        rows["differences"] += keyed(found(base, candidate), kind=kind)
    given = of.ratios[of.ratios["quantity"].isin([*GIVES]) & of.ratios["both"]].rename(columns={"note": "reason"})
    given = given.set_index("row").loc[steps["row"]]
    known = tables(TABLES, rows) | {"step_times": steps[[*CASES]], "ratios": given[[*TABLES["ratios"]]]}
    warnings = (*across_findings(base, candidate, of.common(1)), *unfinished(base, candidate))
    return Answer(tuple(answers(works)), known, warnings=warnings)


def lines(of: Answer) -> list[str]:
    """Return the comparison as lines of text."""
    sides, rows = of.tables["sides"], cells(of)
    differences = zip(of.tables["differences"]["kind"], differing(of), strict=True)
    return [
        *(f"{name}: {hardware}" for name, hardware in zip(sides["side"], sides["hardware"], strict=True)),
        *format.in_lines(of.sentences),
        *(f"{kind}: {difference}" for kind, difference in differences),
        *format.warnings(of.warnings),
        *(format.aligned(rows) if len(rows) > 1 else ()),
        *(f"{label}: {why}" for label, why in without_ratio(of)),
    ]


def cells(of: Answer) -> list[list[str]]:
    """Return the head, then the cells of each configuration with a ratio, candidate / base."""
    ratios = [word for title in TITLES.values() for word in (title, "95%")]
    rows = [["Case", *(f"{name}, ms" for name in of.tables["sides"]["side"]), *ratios]]
    given = of.tables["ratios"].set_index(["label", "quantity"])
    for step in records(of.tables["step_times"]):
        if not pd.isna(step["ratio"]):
            own = [step, *(given.loc[(step["label"], name)] for name in GIVES)]
            times = [format.digits(step[column] * 1e3) for column in STEP_TIMES.values()]
            rows.append([step["label"], *times])
            for each in own:
                known = not pd.isna(each["ratio"])
                rows[-1] += [format.times(each["ratio"]), interval(each["low"], each["high"])] if known else ["–", "–"]
    return rows


def without_ratio(of: Answer) -> Iterator[tuple[str, str]]:
    """Yield the label of each configuration without a ratio, and the reason."""
    steps = of.tables["step_times"]
    notes = dict(zip(steps["label"], steps["note"].where(steps["ratio"].isna()), strict=True))
    for row in records(of.tables["cases"]):
        if row["missing"]:
            side = "candidate" if row["base_case_id"] is None else "base"
            yield row["label"], f"only in {side}: {row['missing']}"
        elif isinstance(notes[row["label"]], str):
            yield row["label"], notes[row["label"]]


def command(of: Answer) -> str:
    """Return the command that repeats this comparison."""
    return shlex.join(["parabench", "compare", *of.tables["sides"]["at"], "--across-hardware"])
