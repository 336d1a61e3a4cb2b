"""What the page's script draws from: every case and every launch of a session of trainings, embedded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.efficiency import efficiency
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.memory import PARTS, case_states
from parabench.analysis.numbers import WORK, levels, same_work
from parabench.analysis.ranking.race import exits
from parabench.analysis.ranking.ranking import Ranking, marks, slower_unranked
from parabench.analysis.scaling import ALIKE, FIXED, STRONG, curves
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, taken_apart
from parabench.analysis.step.stragglers import straggler_table
from parabench.analysis.warnings.codes import all_findings
from parabench.analysis.warnings.launches import AA_SPREAD, DRIFTS, session_warnings
from parabench.metrics import STEP_PARTS
from parabench.plan.case import Case
from parabench.report import palette
from parabench.report.page import declared, packed
from parabench.report.palette import bars
from parabench.report.rerun import rerun_of
from parabench.report.spec import Column
from parabench.strategies import entry_of

# By what a reader may filter, in the order of the bar, and how it is called. Those in which cases do not differ are
# left out; the fields of a work come after these.
FILTERS = {
    "strategy": "Strategy",
    "algorithm": "Algorithm",
    "bucket_mib": "Bucket, MiB",
    "world_size": "Ranks",
    "model": "Model",
    "status": "Status",
}
_NUMBERS = (
    "step_time_s", "low_s", "high_s", "spread", "p90_s", "tokens_per_s", "peak_memory_bytes", "n_ok", "n_launches",
    *STEP_PARTS,
)  # fmt: skip
_LAUNCH = ("block", "position", "status", "launch_step_s", "p90_s", "drift", "n_steps", "wall_s", "peak_memory_bytes")

# Heads of columns of a file that are called otherwise, or less exactly, inside of the page.
_CSV_HEADS = {
    "low_s": "step_fastest_launch_s", "high_s": "step_slowest_launch_s", "p90_s": "step_p90_s",
    "plus_minus_s": "step_time_plus_minus_s", "tokens_per_s": "throughput_per_s",
}  # fmt: skip
LAUNCH_COLUMNS = (
    Column("Case", "label", "case"),
    Column("Block", "block", "block"),
    Column("Position", "position", "count"),
    Column("Status", "status", "status"),
    Column("Step ms", "launch_step_s", "ms"),
    Column("p90 ms", "p90_s", "ms"),
    Column("Drift", "drift", "percent"),
    Column("Wall", "wall_s", "seconds"),
    Column("Buckets", "buckets"),
    Column("Error", "error", "error"),
)


def case_columns_shown(unit: str, margins: bool) -> list[Column]:
    """Of the table of all cases, whose throughput counts `unit`; with a ± where one is known."""
    return [
        Column("Case", "label", "case"),
        Column("Status", "status", "status"),
        Column("Step ms", "step_time_s", "ms"),
        *([Column("± ms", "plus_minus_s", "margin_ms", beside=("step_time_s",))] if margins else []),
        Column("Spread", "spread", "percent"),
        Column("p90 ms", "p90_s", "ms"),
        Column(f"{unit.capitalize()}/s", "tokens_per_s", "rate"),
        Column("Peak MiB", "peak_memory_bytes", "mib"),
        Column("Launches ok", "n_ok", "of", beside=("n_launches",)),
        Column("First error", "error", "error"),
    ]


def page_data(seen: SessionData, answers: Sequence[Ranking]) -> dict[str, Any]:
    """Return the data of a training's page as JSON.

    - `cases`: the rows of `numbers.case_table`, fastest first, with `behind`, `case_columns`, `ranking`, `mark`, `work`
      (its place in `works`) and, if there is a Pareto front, `mean_peak_bytes` over launches.
    - `launches`, as they ran: the row of the `case`, or None; whether they count (`counts`), and their step time
      relative to the case's (`from_case`). `blocks` has the medians.
    - `works`: name, unit, `front` (the rows of its Pareto front), and whether intervals of `slower` are known.
    - `tables`, `filters`, `curves`, `styles`, `bars`, `limits`, `findings`: see the functions that return them.
    """
    cases = seen.cases
    works = same_work(cases)
    units = [format.unit_of(work["seq_len"]) for work, _ in works]
    of_work = {case: i for i, (_, group) in enumerate(works) for case in group["case_id"]}
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    again = rerun_of(seen.session)
    headings = {tuple(answer.work.values()): answer.heading for answer in answers}
    compared = {of_work[one.case_id] for answer in answers for one in answer.candidates if one.slower_low is not None}
    fronts = {
        of_work[answer.front[0].case_id]: [rows[point.case_id] for point in answer.front]
        for answer in answers
        if len(answer.front) > 1
    }
    # The page's names of columns.
    every = seen.numbers.rename(columns={"case": "case_id", "repetition": "block", "step_s": "launch_step_s"})
    every = every.sort_values("launch_id")
    # The sizes of the buckets that each launch used, if they were recorded.
    sizes = [seen.facts[at].get("bucket_bytes") or [] for at in every["launch_id"]]
    every = every.assign(
        buckets=[f"{len(own)}, largest {format.mebibytes(max(own))}" if own else "" for own in sizes],
        bucket_bytes=[" ".join(f"{size:.0f}" for size in own) for own in sizes],
    )
    first_sizes = every[every["bucket_bytes"] != ""].groupby("case_id")["bucket_bytes"].first()
    peaks = levels(seen.counted[seen.counted["peak_memory_bytes"] > 0], "peak_memory_bytes")
    table = cases[["case_id", "label", "status", "error", "statistic", *_NUMBERS]].assign(
        **case_columns(seen),
        # As they are, not rounded: they name the case, also in the command that runs it again.
        **{name: cases[name].astype(object) for name in Case().to_dict()},
        **behind(cases, answers, slower_unranked(seen, answers)),
        bucket_bytes=cases["case_id"].map(first_sizes),
        **marks(cases, answers),
        mean_peak_bytes=cases["case_id"].map(peaks) if fronts else None,
        ranked=[entry_of(str(name)).ranked for name in cases["strategy"]],
        work=[of_work[case] for case in cases["case_id"]],
        rerun=[again(seen.case(case)) for case in cases["case_id"]],
        throughput_unit=[f"{units[of_work[case]]}/s" for case in cases["case_id"]],
    )
    seconds = cases.set_index("case_id")["step_time_s"].astype(float).where(cases["n_ok"].to_numpy() > 1)
    deviation = (every["launch_step_s"] / every["case_id"].map(seconds) - 1).where(every["counted"])
    launches = every[["launch_id", "case_id", "label", *_LAUNCH]].assign(
        counts=every["counted"].astype(int),
        from_case=deviation,
        drift=every["drift"].round(4),  # a hundredth of a percent
        case=every["case_id"].map(rows),
        buckets=every["buckets"],
        error=every["error"],
    )
    return {
        "cases": packed(table),
        "launches": packed(launches),
        "blocks": packed(deviation.groupby(every["block"]).median().dropna().rename("median").reset_index()),
        "tables": {
            "cases": declared(
                case_columns_shown(" or ".join(dict.fromkeys(units)), bool(table["plus_minus_s"].notna().any())),
                [str(name) for name in table if name not in ("work", "rerun")],
                lambda name: _CSV_HEADS.get(name, name),
                "step_time_s",
            ),
            "launches": declared(
                LAUNCH_COLUMNS,
                [str(name) for name in launches if name != "case"],
                lambda name: _CSV_HEADS.get(name, name),
            ),
        },
        "works": [
            {
                "name": headings.get(tuple(work.values()), ""),
                "unit": units[i],
                "front": fronts.get(i, []),
                "compared": i in compared,
            }
            for i, (work, _) in enumerate(works)
        ],
        "filters": _filters(cases),
        "curves": scaling_data(seen.once(curves), rows),
        "styles": styles(cases),
        "bars": bars(),
        "findings": packed(_findings(seen, rows)),
        "limits": {"drift": DRIFTS, "aa": {STATISTIC[device]: spread for device, spread in AA_SPREAD.items()}},
    }


def _filters(cases: pd.DataFrame) -> list[tuple[str, str]]:
    further = {name: name.replace("_", " ").capitalize() for name in WORK if name not in FILTERS}
    return [(name, title) for name, title in (FILTERS | further).items() if cases[name].nunique(dropna=False) > 1]


def styles(cases: pd.DataFrame) -> dict[str, dict[str, dict[str, Any]]]:
    """How strategies and algorithms look: {"strategy": {name: {color, dash, symbol}}, "algorithm": ...}; of a strategy
    also whether it `has_algorithm`, which its name in a figure may then say."""
    algorithms = palette.in_native_order(cases["algorithm"].unique())
    return {
        "strategy": {
            name: palette.strategy_line(name)
            | {"symbol": palette.symbol_of(name), "has_algorithm": "algorithm" in entry_of(name).axes}
            for name in map(str, cases["strategy"].unique())
        },
        "algorithm": {
            name: palette.algorithm_line(name) | {"symbol": palette.algorithm_symbol(name)} for name in algorithms
        },
    }


# Columns of different tables that would have the same name, or none that tells what they are.
_RENAMED = {
    "step_s": "instrumented_s", "data_s": "instrumented_data_s", "measured": "state_bytes",
    "theory": "state_theory_bytes", "formula": "state_formula", "exact": "state_exact",
}  # fmt: skip


def case_columns(seen: SessionData) -> pd.DataFrame:
    """Return columns next to `seen.cases`, in seconds, bytes and shares; NaN or None if a value is unknown.

    - The median instrumented step: `instrumented_s` = `instrumented_data_s` + `compute_s` + `exposed_s` + `idle_s`.
      `overlapped_s` is a lower bound if there are `unknown_calls`. `exposed_forward_s` and so on are within each part.
    - Memory: on a GPU the peaks of torch's allocator and of NVML; the model states as measured and by theory.
    - FLOP/s, MFU and joules, and the rank that the others wait for, with the time per step.
    """
    columns = {
        taken_apart: (
            "step_s", "data_s", "compute_s", "exposed_s", "overlapped_s", "idle_s", "exposed_share", "unknown_calls",
            "instruments_ratio", *EXPOSED_IN.values(),
        ),
        case_states: ("measured", "theory", "formula", "exact", *PARTS),
        efficiency: ("flops_per_s", "mfu", "mfu_reason", "joules_per_step", "joules_per_token"),
        straggler_table: ("straggler", "waited_s", "waited_share"),
    }  # fmt: skip
    tables = [seen.once(make).set_index("case_id")[list(names)] for make, names in columns.items()]
    found = pd.concat([seen.cases_by_id[["peak_reserved_bytes", "used_bytes"]], *tables], axis="columns")
    return found.rename(columns=_RENAMED).reindex(seen.cases["case_id"]).set_axis(seen.cases.index)


_OF_CANDIDATE = ("plus_minus_s", "slower", "slower_low", "slower_high")


def behind(cases: pd.DataFrame, answers: Sequence[Ranking], unranked: Mapping[str, float]) -> pd.DataFrame:
    """Return columns next to `cases`.

    `plus_minus_s` is the 95 % half-width of a step time. `slower` is the ratio to the best of its workload in common
    launches and repetitions, less 1, NaN if none connects the two; `slower_low` to `slower_high` is its interval, NaN
    for a case that is not ranked. A case that left a race has the repetition, counted from 1, and the bound.
    """
    rows: dict[str, dict[str, Any]] = {case: {} for case in cases["case_id"]}
    for answer in answers:
        for one in (*answer.candidates, *answer.not_compared):
            rows[one.case_id] |= {name: getattr(one, name) for name in _OF_CANDIDATE}
        for case, (look, each) in exits(answer.race).items():
            rows[case] |= {"left_after_block": look.block + 1, "left_at_least": each.at_least}
    for case, slower in unranked.items():
        rows[case].setdefault("slower", slower)
    columns = [*_OF_CANDIDATE, "left_after_block", "left_at_least"]
    return pd.DataFrame([*rows.values()], cases.index, columns, dtype=float)


def _findings(seen: SessionData, rows: dict[Any, int]) -> pd.DataFrame:
    """Stored and computed findings of one case each: its row, `case`, `code`, `message` without its label, `advice`."""
    own = [
        (rows[each.case_id], each.code, each.message.removeprefix(f"{seen.labels[each.case_id]}: "), each.advice)
        for each in all_findings(seen.results, seen.session, seen.once(session_warnings))
        if each.case_id is not None and each.case_id in rows
    ]
    return pd.DataFrame(own, columns=["case", "code", "message", "advice"])


# The values of these need no name before them.
_SPEAKING = ("model", "data", "precision", "device")


def scaling_data(curves: pd.DataFrame, rows: Mapping[Any, int]) -> dict[str, Any]:
    """`curves` as `analysis.scaling` has them, their cases by the row in `rows`.

    `groups` have the title of what stays the same and the unit of throughput; a curve names its `group`, the row of its
    `base` and how many points it has, `n_points`; a point its `case` and `efficiency`, those of a curve together and in
    the order of the curves.
    """
    begins = curves.drop_duplicates("curve")
    works = curves[list(ALIKE)].drop_duplicates()
    table = pd.DataFrame(
        {
            "group": begins["group"],
            "base": begins["base_case_id"].map(rows),
            "n_points": curves.groupby("curve").size().to_numpy(),
        }
    )
    return {
        "groups": [
            {"title": _title(group, works), "unit": format.unit_of(group["seq_len"])}
            for group in begins.drop_duplicates("group").to_dict("records")
        ],
        "curves": packed(table),
        "points": packed(pd.DataFrame({"case": curves["case_id"].map(rows), "efficiency": curves["efficiency"]})),
    }


def _title(group: Mapping[Any, Any], works: pd.DataFrame) -> str:
    """'Strong scaling, global batch 8', and what else sets this work apart."""
    kind = group["kind"]
    said = f"global batch {group[FIXED[kind]]}" if kind == STRONG else f"{group[FIXED[kind]]:g} samples a rank"
    apart = [
        str(group[name]) if name in _SPEAKING else f"{name.replace('_', ' ')} {group[name] or 'of bytes'}"
        for name in ALIKE
        if works[name].nunique() > 1
    ]
    return ", ".join([f"{kind.capitalize()} scaling", said, *apart])
