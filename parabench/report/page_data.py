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
from parabench.analysis.ranking.ranking import Answer, marks, slower_unranked
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


def page_data(seen: SessionData, answers: Sequence[Answer]) -> dict[str, Any]:
    """The data of a training's page, as JSON holds it.

    `cases` are rows as `numbers.case_table` has them, fastest first, each with its `ranking` in the answers, its `mark`
    where it is not ranked, and `work`, the index of its work in `works`; `launches` name theirs by its row, `case`, and
    tell whether they count (`counts`: 1, else 0) and how far from their case's step time they are (`from_case`), of
    which `blocks` have the medians.
    `tables` are those of all cases and of all launches; `filters` are [column, title] pairs; `curves` is what
    `scaling_data` makes of scaling; `styles` are how each strategy and algorithm is drawn. A work's `front` are the
    rows of the configurations that no other beats in both step time and memory, where there is more than one; where a
    work has, `mean_peak_bytes` is each case's memory, mean over launches. A work is `compared` where intervals of
    `slower` are known. `apart` are launches of no case in the tables; `findings` are as `_findings` has
    them; `limits` are those of the Trust tab; `bars` are how the parts of a case's bars look. The rest is `behind` and
    `case_columns`.
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
    known = seen.counted[seen.counted["peak_memory_bytes"] > 0]
    table = cases[["case_id", "label", "status", "error", "statistic", *_NUMBERS]].assign(
        **case_columns(seen),
        # As they are, not rounded: they name the case, also in the command that runs it again.
        **{name: cases[name].astype(object) for name in Case().to_dict()},
        **behind(cases, answers, slower_unranked(seen, answers)),
        bucket_bytes=cases["case_id"].map(bucket_bytes(seen)),
        **marks(cases, answers),
        mean_peak_bytes=cases["case_id"].map(levels(known, "peak_memory_bytes")) if fronts else None,
        ranked=[entry_of(str(name)).ranked for name in cases["strategy"]],
        work=[of_work[case] for case in cases["case_id"]],
        rerun=[again(seen.case(case)) for case in cases["case_id"]],
        throughput_unit=[f"{units[of_work[case]]}/s" for case in cases["case_id"]],
    )
    # The page's names of columns.
    every = seen.numbers.rename(columns={"case": "case_id", "repetition": "block", "step_s": "launch_step_s"})
    every = every.assign(buckets=_buckets(seen))
    own, others = every[every["case_id"].isin(rows)], every[~every["case_id"].isin(rows)]
    seconds = cases.set_index("case_id")["step_time_s"].astype(float).where(cases["n_ok"].to_numpy() > 1)
    deviation = (own["launch_step_s"] / own["case_id"].map(seconds) - 1).where(own["counted"])
    launches = own[["launch_id", *_LAUNCH]].assign(
        counts=own["counted"].astype(int),
        from_case=deviation,
        drift=own["drift"].round(4),  # a hundredth of a percent
        case=[rows[case] for case in own["case_id"]],
        buckets=own["buckets"],
        error=own["error"],
    )
    return {
        "cases": packed(table),
        "launches": packed(launches),
        "blocks": packed(deviation.groupby(own["block"]).median().dropna().rename("median").reset_index()),
        "tables": {
            "cases": declared(
                case_columns_shown(" or ".join(dict.fromkeys(units)), bool(table["plus_minus_s"].notna().any())),
                [str(name) for name in table if name not in ("work", "rerun")],
                lambda name: _CSV_HEADS.get(name, name),
                "step_time_s",
            ),
            "launches": declared(
                LAUNCH_COLUMNS,
                dict.fromkeys(["launch_id", "case_id", "label", *(str(name) for name in launches if name != "case")]),
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
        "apart": packed(others[["launch_id", "case_id", "label", *_LAUNCH, "error", "buckets"]]),
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


# Beside `peak_memory_bytes`: on a GPU what torch's allocator held, and what NVML saw in use.
PEAKS = ("peak_reserved_bytes", "used_bytes")
# By table: its columns, and what they are called beside those of the others.
ANATOMY = {
    "step_s": "instrumented_s", "data_s": "instrumented_data_s", "compute_s": "compute_s", "exposed_s": "exposed_s",
    "overlapped_s": "overlapped_s", "idle_s": "idle_s", "exposed_share": "exposed_share",
    "unknown_calls": "unknown_calls", "instruments_ratio": "instruments_ratio",
} | {column: column for column in EXPOSED_IN.values()}  # fmt: skip
STATE = {
    "measured": "state_bytes", "theory": "state_theory_bytes", "formula": "state_formula", "exact": "state_exact",
} | {part: part for part in PARTS}  # fmt: skip
USE = {name: name for name in ("flops_per_s", "mfu", "mfu_reason", "joules_per_step", "joules_per_token")}
WAITS = {"straggler": "straggler", "waited_s": "waited_s", "waited_share": "waited_share"}


def case_columns(seen: SessionData) -> pd.DataFrame:
    """Columns beside `seen.cases`, row by row; NaN or None where something is unknown. Seconds, bytes and shares.

    Of the median instrumented step: `instrumented_s` = `instrumented_data_s` + `compute_s` + `exposed_s` + `idle_s`,
    `overlapped_s` of communication inside compute (a lower bound where there are `unknown_calls`), `exposed_forward_s`
    and so on within each part, `exposed_share` of the step. Of memory: PEAKS, the training state as measured and by
    theory. FLOP/s, MFU and joules. The rank that others wait for most, and how long per step.
    """
    tables = (
        (seen.once(taken_apart), ANATOMY),
        (seen.once(case_states), STATE),
        (seen.once(efficiency), USE),
        (seen.once(straggler_table), WAITS),
    )
    named = [table.set_index("case_id")[list(columns)].rename(columns=columns) for table, columns in tables]
    found = pd.concat([seen.cases_by_id[list(PEAKS)], *named], axis="columns")
    return found.reindex(seen.cases["case_id"]).set_axis(seen.cases.index)


def _bucket_sizes(seen: SessionData) -> list[list[float]]:
    """Return the sizes in bytes of the buckets that each launch used; empty if they were not recorded."""
    return [seen.facts[at].get("bucket_bytes") or [] for at in seen.numbers["launch_id"]]


def _buckets(seen: SessionData) -> list[str]:
    """Return '3, largest 25.0 MiB' for each launch."""
    return [f"{len(own)}, largest {format.mebibytes(max(own))}" if own else "" for own in _bucket_sizes(seen)]


def bucket_bytes(seen: SessionData) -> dict[str, str]:
    """Return the sizes of the buckets of each case's first launch that recorded them, separated by spaces."""
    launches = reversed(list(zip(seen.numbers["case"], _bucket_sizes(seen), strict=True)))
    return {case: " ".join(f"{size:.0f}" for size in own) for case, own in launches if own}


# What answers say of a case beside its step time.
_BEHIND = ["plus_minus_s", "slower", "slower_low", "slower_high", "left_after_block", "left_at_least"]


def behind(cases: pd.DataFrame, answers: Sequence[Answer], unranked: Mapping[str, float]) -> pd.DataFrame:
    """Return columns next to `cases`.

    `plus_minus_s` is the 95 % half-width of a step time. `slower` is the ratio to the best of its workload in common
    launches and repetitions, less 1, NaN if none connects the two; `slower_low` to `slower_high` is its interval, NaN
    for a case that is not ranked. A case that left a race has the repetition, counted from 1, and the bound.
    """
    left = {
        each.case_id: (look.block + 1, each.at_least)
        for answer in answers
        for look, each in exits(answer.race).values()
    }
    told = {
        one.case_id: [getattr(one, name) for name in _BEHIND[:4]] + [*left.get(one.case_id, (None, None))]
        for answer in answers
        for one in (*answer.candidates, *answer.not_compared)
    }
    found = pd.DataFrame.from_dict(told, orient="index", columns=_BEHIND, dtype=float)
    found = found.reindex(cases["case_id"]).set_axis(cases.index)
    return found.fillna({"slower": cases["case_id"].map(unranked).set_axis(cases.index)})


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
