"""Compare two sessions or machines: ratios by configuration and their means, without a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer, Columns, columns, tables
from parabench.analysis.compare.comparison import (
    CASES,
    EFFICIENCIES,
    SHARED_WORK,
    STEP,
    STEP_TIMES,
    Comparison,
    Outcome,
)
from parabench.analysis.compare.gate import UNPAIRED, unfinished
from parabench.analysis.compare.sides import between_means
from parabench.analysis.environment.diff import (
    Difference,
    differences,
    hardware_differences,
    hardware_name,
    software_differences,
)
from parabench.analysis.numbers import same_work, work_text
from parabench.analysis.session import Origin
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Mean, geometric_mean, logs_of
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


def answer(of: Comparison) -> Answer:
    """Return the answer of a comparison of two sessions. Configurations are ordered by their ratio."""
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for side in (of.base, of.candidate):
        rows["sides"].append((side.origin, {"side": side.role, "hardware": hardware_name(side)}))
    sentences = [sentence for workload in _workloads(of, rows) for sentence in workload]
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
    others = of.ratios[of.ratios["quantity"].isin([*EFFICIENCIES]) & of.ratios["both"]]
    others = others.rename(columns={"note": "reason"}).set_index("row").loc[steps["row"]]
    known = tables(TABLES, rows) | {"step_times": steps[[*CASES]], "ratios": others[[*TABLES["ratios"]]]}
    nothing = "Nothing can be compared, because the sessions have no launches."
    return Answer(tuple(sentences) or (nothing,), known, warnings=tuple(_warnings(of)))


def _workloads(of: Comparison, rows: Mapping[str, list[Any]]) -> Iterator[list[str]]:
    """Yield the sentences about each workload, from its ranked configurations, and add its rows to the tables."""
    names = (of.base.role, of.candidate.role)
    works = same_work(of.cases, SHARED_WORK)
    differ = [name for name in SHARED_WORK if len({str(work[name]) for work, _ in works}) > 1]
    judged = of.of(STEP)
    judged = judged[judged["ratio"].notna()]
    for work, cases in works:
        values = (f"{name.replace('_', ' ')} {'default' if work[name] is None else work[name]}" for name in differ)
        heading = ", ".join(values)
        ranked = cases[[entry_of(str(name)).ranked for name in cases["strategy"]]]
        both = ranked[ranked["in_base"] & ranked["in_candidate"]]
        old, new = both["base_id"].isin(list(of.base.by_case)), both["candidate_id"].isin(list(of.candidate.by_case))
        means = {name: _mean(of, ranked.index, name) for name in (STEP, *EFFICIENCIES)}
        outcomes = Counter(judged["outcome"][judged["row"].isin(ranked.index)])
        mean = means[STEP]
        faster, slower = names[::-1] if (mean.ratio or 1) < 1 else names
        known = mean.low is not None and mean.high is not None
        row: dict[str, Any] = {
            "workload": heading,
            "work": work_text(work),
            "best": faster if known else None,
            "tied": (slower,) if known and not _apart(mean) else (),
            "lost": int((old & ~new).sum()),
            "mended": int((new & ~old).sum()),
            "cases": len(ranked),
            "shared": mean.cases,
        }
        rows["workloads"].append(row)
        rows["means"] += [(each, {"workload": heading, "quantity": name}) for name, each in means.items()]
        rows["outcomes"] += [{"workload": heading, "outcome": each, "cases": n} for each, n in outcomes.items()]
        first, *others = _sentences(names, row, means, outcomes, format.unit_of(work["seq_len"]))
        yield [f"{heading[0].upper()}{heading[1:]}: {first}" if heading else first, *others]


def _mean(of: Comparison, rows: pd.Index[int], name: str) -> Mean:
    """Return the mean ratio of the quantity `name` over the configurations `rows` that both sessions launched.

    The interval of step times contains the variation between sessions, as in the gate.
    """
    own = of.of(name)
    own = own[own["row"].isin(rows)]
    if own.empty:
        return Mean(reason=f"no configuration in common with {of.base.role}")
    logs, judged = [], []
    for row in own["row"]:
        old, new = (pd.Series(logs_of(side), side.index) for side in of.launches[name][row])
        if min(len(old), len(new)) >= FEWEST_LAUNCHES:
            judged.append((of.cases.loc[row, "base_id"], of.cases.loc[row, "candidate_id"]))
        logs.append((pd.Series(new.to_numpy() - old.to_numpy(), old.index),) if of.paired else (old, new))
    between = None
    if name == STEP and judged and not of.paired:
        between = between_means(of.base, of.candidate, judged, of.alike)
    unknown = dict.fromkeys(own["note"][own["ratio"].isna()])
    return geometric_mean(logs, format.listed(unknown, most=2), between)


def _sentences(
    names: tuple[str, str],
    row: Mapping[str, Any],
    means: Mapping[str, Mean],
    outcomes: Mapping[Outcome, int],
    unit: str,
) -> Iterator[str]:
    """Yield sentences about the faster session, the outcomes of configurations, and the other quantities."""
    base, candidate = names
    mean = means[STEP]
    if mean.ratio is None:
        yield f"No ranked configuration succeeded both on {base} and on {candidate}, so nothing can be compared."
    else:
        yield _verdict(names, mean, row["cases"])
    if mean.session_sd is not None:
        source = f"measured in {format.count(mean.sessions, 'session')}" if mean.sessions else "assumed"
        sd = f"{format.percent(mean.session_sd)} ({source})"
        yield f"Not interleaved: the intervals contain a standard deviation between sessions of {sd}."
    if outcomes:
        counts = [f"{each} in {outcomes[each]:,}" for each in Outcome if each in outcomes]
        yield f"Configuration by configuration against {base}: {candidate} {', '.join(counts)}."
    for count, there, here in ((row["lost"], base, candidate), (row["mended"], candidate, base)):
        if count:
            yield f"{format.count(count, 'configuration')} with a step time on {there} and none on {here}."
    for name, per in EFFICIENCIES.items() if mean.ratio is not None else ():
        quantity = f"{unit}{'' if per.startswith('/') else ' '}{per}"
        ratio, over = means[name].ratio, _over(means[name])
        if ratio is None:
            yield f"{quantity[0].upper()}{quantity[1:]} on {candidate}: unknown: {means[name].reason}."
        else:
            yield f"Relative to {base}, {quantity}: {format.times(ratio)} times on {candidate} ({over})."


def _apart(mean: Mean) -> bool:
    """Return whether the interval of a mean is known and excludes equal speed."""
    return mean.low is not None and mean.high is not None and not mean.low <= 1 <= mean.high


def _verdict(names: tuple[str, str], mean: Mean, cases: int) -> str:
    """Return the sentence about the faster of two sessions, by the mean over `mean.cases` of `cases` configurations."""
    base, candidate = names
    ratio = mean.ratio or math.nan
    where = "overall" if mean.cases == cases else f"over {mean.cases:,} of {format.count(cases, 'configuration')}"
    if mean.low is None:
        faster = "Significance cannot be tested with one launch per configuration"
    elif _apart(mean):
        faster = f"{candidate if ratio < 1 else base} is faster {where}"
    else:
        faster = f"{base} and {candidate} are not statistically distinguishable {where}"
    return f"{faster}: a step takes {format.times(ratio)} times as long on {candidate} as on {base} ({_over(mean)})."


def _over(mean: Mean) -> str:
    """Return the basis of a mean in words: 'geometric mean of 3 configurations; 95%: 0.40 to 0.42'."""
    ends = (
        "no interval" if mean.low is None or mean.high is None else f"95%: {format.times_between(mean.low, mean.high)}"
    )
    return f"geometric mean of {format.count(mean.cases, 'configuration')}; {ends}"


def _warnings(of: Comparison) -> Iterator[Finding]:
    """Yield warnings about other causes of the ratios, and about unfinished sessions."""
    if of.common and not of.paired:
        found = differences(of.base, of.candidate)
        other_hardware = any(each.name in _MACHINES and each.matters for each in found)
        yield from _other_causes(of) if other_hardware else [UNPAIRED]
    yield from unfinished(of.base, of.candidate)


def _other_causes(of: Comparison) -> Iterator[Finding]:
    """Yield a warning for each cause of a ratio other than the hardware."""
    sides = (of.base, of.candidate)
    base, candidate = (side.role for side in sides)
    yield Finding(
        "one_machine",
        "Each variant is one machine: the intervals do not cover the variation between machines of a kind.",
        "Measure several machines of a kind before you decide on one.",
    )
    pairs = [(of.base.cases_by_id.loc[old], of.candidate.cases_by_id.loc[new]) for old, new in of.common]
    if unlike := [pair for pair in pairs if pair[0]["device"] != pair[1]["device"]]:
        memory = {"cpu": "resident set of a process", accelerator.TYPE: "memory that torch allocated on a device"}
        (one, its_memory), (other, other_memory) = ((row["statistic"], memory[str(row["device"])]) for row in unlike[0])
        yield Finding(
            "statistic",
            f"The step time of a launch is the {one} of its steps on {base} and the {other} on {candidate}, because "
            "CPUs are shared and devices are not. "
            f"Peak memory is the {its_memory} on {base} and the {other_memory} on {candidate}.",
            "Do not draw conclusions from a ratio near 1, or from the ratio per GB.",
        )
    own, new = (" and ".join(sorted(set(side.counted["joules_source"].dropna()))) for side in sides)
    if own and new and own != new:
        yield Finding(
            "energy",
            f"Joules are from the {own} on {base} and from the {new} on {candidate}.",
            "Power readings can be off by several percent; compare devices that have the same source.",
        )
    if software := [each.name for each in software_differences(*sides)]:
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
