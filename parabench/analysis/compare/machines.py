"""How do two sessions or machines compare? Ratios and their means over configurations, without a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer, Columns, columns, tables
from parabench.analysis.compare.comparison import GIVES, SHARED_WORK, STEP, Comparison, Outcome, compare_sessions
from parabench.analysis.compare.gate import CASES, STEP_TIMES, UNPAIRED, unfinished
from parabench.analysis.compare.sides import between_means, check_distinct
from parabench.analysis.environment.diff import (
    Difference,
    differences,
    hardware_differences,
    hardware_name,
    software_differences,
)
from parabench.analysis.numbers import of_pair, same_work, work_text
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Mean, geometric_mean, logs_of
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.store.record import Finding
from parabench.store.results import records
from parabench.strategies import entry_of

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
# Facts whose difference means other hardware.
_MACHINES = ("devices", "driver", "cpu", "cores")


@dataclass(frozen=True)
class Workload:
    """Two sessions compared over the ranked configurations of a workload."""

    heading: str  # the difference from other workloads
    work: dict[str, Any]
    cases: int
    means: dict[str, Mean]  # by quantity, over common configurations
    outcomes: dict[Outcome, int]
    lost: int  # configurations with a step time in base only
    mended: int  # configurations with a step time in candidate only


def compared(base: SessionData, candidate: SessionData) -> Comparison:
    """Return two machines side by side.

    Raises UsageError if both sides are the same session, or if they have no configuration in common.
    """
    check_distinct((base, candidate))
    of = compare_sessions(base, candidate)
    if not of.common:
        raise UsageError(
            f"{base.session.name} of {base.results.path} and {candidate.session.name} of {candidate.results.path} have "
            "no workload in common; measure the same suite with the same --set on both"
        )
    return of


def workloads(of: Comparison) -> list[Workload]:
    """Return one result for each workload, in the order of the configurations."""
    works = same_work(of.cases, SHARED_WORK)
    differ = [name for name in SHARED_WORK if len({str(work[name]) for work, _ in works}) > 1]
    judged = of.of(STEP)
    judged = judged[judged["ratio"].notna()]
    found = []
    for work, cases in works:
        named = (f"{name.replace('_', ' ')} {'default' if work[name] is None else work[name]}" for name in differ)
        ranked = cases[[entry_of(str(name)).ranked for name in cases["strategy"]]]
        both = ranked[ranked["in_base"] & ranked["in_candidate"]]
        old, new = both["base_id"].isin(list(of.base.by_case)), both["candidate_id"].isin(list(of.candidate.by_case))
        found.append(
            Workload(
                heading=", ".join(named),
                work=work,
                cases=len(ranked),
                means={name: _mean(of, ranked.index, name) for name in (STEP, *GIVES)},
                outcomes=dict(Counter(judged["outcome"][judged["row"].isin(ranked.index)])),
                lost=int((old & ~new).sum()),
                mended=int((new & ~old).sum()),
            )
        )
    return found


def _mean(of: Comparison, rows: pd.Index[int], name: str) -> Mean:
    """Return the mean ratio over the configurations `rows` that both sessions have.

    The interval of step times contains the variation between sessions, as in the gate.
    """
    own = of.of(name)
    own = own[own["row"].isin(rows)]
    if own.empty:
        return Mean(reason=f"no configuration in common with {of.base.role}")
    base, candidate = of.known[name]
    logs, judged = [], []
    for pair in of.cases.loc[own["row"], ["base_id", "candidate_id"]].itertuples(index=False, name=None):
        sides = of_pair(pair, base.by_case, candidate.by_case, of.paired)
        old, new = (pd.Series(logs_of(side), side.index) for side in sides)
        if min(len(old), len(new)) >= FEWEST_LAUNCHES:
            judged.append(pair)
        logs.append((pd.Series(new.to_numpy() - old.to_numpy(), old.index),) if of.paired else (old, new))
    between = None
    if name == STEP and judged and not of.paired:
        between = between_means(of.base, of.candidate, judged, of.alike)
    unknown = dict.fromkeys(own["note"][own["ratio"].isna()])
    return geometric_mean(logs, format.listed(unknown, most=2), between)


def answer(of: Comparison) -> Answer:
    """Return the answer of a comparison of two sessions. Configurations are ordered by their ratio."""
    names = (of.base.role, of.candidate.role)
    works = workloads(of)
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for side in (of.base, of.candidate):
        rows["sides"].append((side.origin, {"side": side.role, "hardware": hardware_name(side)}))
    for work in works:
        key, mean = {"workload": work.heading}, work.means[STEP]
        faster, slower = names[::-1] if (mean.ratio or 1) < 1 else names
        best: dict[str, Any] = {"best": None, "tied": ()}
        if mean.low is not None and mean.high is not None:
            best = {"best": faster, "tied": (slower,) if mean.low <= 1 <= mean.high else ()}
        counts = {"lost": work.lost, "mended": work.mended, "cases": work.cases, "shared": mean.cases}
        rows["workloads"].append(key | {"work": work_text(work.work)} | best | counts)
        rows["means"] += [(each, key | {"quantity": name}) for name, each in work.means.items()]
        rows["outcomes"] += [key | {"outcome": outcome, "cases": n} for outcome, n in work.outcomes.items()]
    steps = of.of(STEP).sort_values("ratio", kind="stable").rename(columns=STEP_TIMES)
    both = set(steps["row"])
    for row in [*steps["row"], *(row for row in of.cases.index if row not in both)]:
        case = of.cases.loc[row]
        missing = "" if case["in_base"] else of.base.why_missing(case["base_id"])
        missing = missing or ("" if case["in_candidate"] else of.candidate.why_missing(case["candidate_id"]))
        ids = {f"{side}_case_id": case[f"{side}_id"] if case[f"in_{side}"] else None for side in ("base", "candidate")}
        rows["cases"].append({"label": case["label"], "missing": missing} | ids)
    for kind, found in (("hardware", hardware_differences), ("software", software_differences)):
        rows["differences"] += [(each, {"kind": kind}) for each in found(of.base, of.candidate)]
    given = of.ratios[of.ratios["quantity"].isin([*GIVES]) & of.ratios["both"]].rename(columns={"note": "reason"})
    given = given.set_index("row").loc[steps["row"]]
    known = tables(TABLES, rows) | {"step_times": steps[[*CASES]], "ratios": given[[*TABLES["ratios"]]]}
    return Answer(tuple(_answers(names, works)), known, warnings=tuple(_warnings(of)))


def _answers(names: tuple[str, str], works: list[Workload]) -> Iterator[str]:
    """Yield the sentences about all workloads."""
    for work in works:
        first, *others = _sentences(names, work)
        yield f"{work.heading[0].upper()}{work.heading[1:]}: {first}" if work.heading else first
        yield from others
    if not works:
        yield "Nothing can be compared, because the sessions have no launches."


def _sentences(names: tuple[str, str], work: Workload) -> Iterator[str]:
    """Yield the faster session, the outcomes of configurations, and the other quantities."""
    base, candidate = names
    mean = work.means[STEP]
    if mean.ratio is None:
        yield f"No ranked configuration succeeded both on {base} and on {candidate}, so nothing can be compared."
    else:
        yield _verdict(names, mean, work.cases)
    if mean.session_sd is not None:
        source = f"measured in {format.count(mean.sessions, 'session')}" if mean.sessions else "assumed"
        sd = f"{format.percent(mean.session_sd)} ({source})"
        yield f"Not interleaved: the intervals contain a standard deviation between sessions of {sd}."
    if work.outcomes:
        counts = [f"{each} in {work.outcomes[each]:,}" for each in Outcome if each in work.outcomes]
        yield f"Configuration by configuration against {base}: {candidate} {', '.join(counts)}."
    for count, there, here in ((work.lost, base, candidate), (work.mended, candidate, base)):
        if count:
            yield f"{format.count(count, 'configuration')} with a step time on {there} and none on {here}."
    if mean.ratio is None:
        return
    for name, unit in GIVES.items():
        given = work.means[name]
        quantity = f"{format.unit_of(work.work['seq_len'])}{'' if unit.startswith('/') else ' '}{unit}"
        if given.ratio is None:
            yield f"{quantity[0].upper()}{quantity[1:]} on {candidate}: unknown: {given.reason}."
        else:
            yield f"Relative to {base}, {quantity}: {format.times(given.ratio)} times on {candidate} ({_over(given)})."


def _verdict(names: tuple[str, str], mean: Mean, cases: int) -> str:
    base, candidate = names
    ratio = mean.ratio or math.nan
    where = "overall" if mean.cases == cases else f"over {mean.cases:,} of {format.count(cases, 'configuration')}"
    if mean.low is None or mean.high is None:
        faster = "Significance cannot be tested with one launch per configuration"
    elif mean.low <= 1 <= mean.high:
        faster = f"{base} and {candidate} are not statistically distinguishable {where}"
    else:
        faster = f"{candidate if ratio < 1 else base} is faster {where}"
    return f"{faster}: a step takes {format.times(ratio)} times as long on {candidate} as on {base} ({_over(mean)})."


def _over(mean: Mean) -> str:
    """Return 'geometric mean of 3 cases; 95%: 0.40 to 0.42'."""
    ends = "no interval" if mean.low is None else f"95%: {interval(mean.low, mean.high)}"
    return f"geometric mean of {format.count(mean.cases, 'configuration')}; {ends}"


def interval(low: float | None, high: float | None) -> str:
    """Return '0.40 to 0.42', or a dash if the interval is unknown."""
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return "–"
    return format.times_between(low, high)


def _warnings(of: Comparison) -> Iterator[Finding]:
    """Yield other causes of the ratios, and unfinished sessions."""
    if of.common and not of.paired:
        found = differences(of.base, of.candidate)
        if any(each.name in _MACHINES and each.matters for each in found):
            yield from _other_causes(of)
        else:
            yield UNPAIRED
    yield from unfinished(of.base, of.candidate)


def _other_causes(of: Comparison) -> Iterator[Finding]:
    """Yield causes of a ratio other than the hardware."""
    sides = (of.base, of.candidate)
    base, candidate = (side.role for side in sides)
    yield Finding(
        "one_machine",
        "Each variant is one machine: the intervals do not cover the variation between machines of a kind.",
        "Measure several machines of a kind before you decide on one.",
    )

    def apart(column: str) -> tuple[str, str]:
        """Return both values of `column` for the first pair with different values; empty if all are equal."""
        own, other = (side.cases_by_id[column].astype(str) for side in sides)
        return next(((own[old], other[new]) for old, new in of.common if own[old] != other[new]), ("", ""))

    own, other = apart("statistic")
    if own != other:
        yield Finding(
            "statistic",
            f"The step time of a launch is the {own} of its steps on {base} and the {other} on {candidate}, because "
            "CPUs are shared and devices are not: part of the ratio is due to the statistic.",
            "Read nothing into a ratio near 1.",
        )
    own, other = apart("device")
    if own != other:
        kind = {"cpu": "the resident set of a process", accelerator.TYPE: "the memory that torch allocated on a device"}
        yield Finding(
            "memory",
            f"Peak memory is {kind[own]} on {base} and {kind[other]} on {candidate}.",
            "The two are different quantities, so the ratio per GB does not compare efficiency.",
        )
    own, other = (" and ".join(sorted(set(side.counted["joules_source"].dropna()))) for side in sides)
    if own and other and own != other:
        yield Finding(
            "energy",
            f"Joules are from the {own} on {base} and from the {other} on {candidate}.",
            "Power readings can be off by several percent; compare devices that have the same source.",
        )
    software = [each.name for each in software_differences(*sides)]
    if software:
        yield Finding(
            "software",
            f"The software differs too: {format.listed(software, most=8)}. The ratios include its effect.",
            "Measure both variants with the same software to isolate the hardware.",
        )


def without_ratio(of: Answer) -> Iterator[tuple[str, str]]:
    """Yield the label of each configuration without a ratio, and the reason."""
    steps = of.tables["step_times"]
    notes = dict(zip(steps["label"], steps["note"].where(steps["ratio"].isna()), strict=True))
    for row in records(of.tables["cases"]):
        if row["missing"]:
            side = of.tables["sides"]["side"].iloc[int(pd.isna(row["base_case_id"]))]
            yield row["label"], f"only in {side}: {row['missing']}"
        elif isinstance(notes[row["label"]], str):
            yield row["label"], notes[row["label"]]
