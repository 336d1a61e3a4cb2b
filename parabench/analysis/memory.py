"""The memory of a rank: its training state (parameters, gradients, optimizer state), and its peaks by part of a step.

The state is measured, without activations and communication buffers (`parabench.probes.memory`), and computed by the
formulas of `parabench.strategies.memory`. Peaks are those of torch's allocator, on a CPU of the resident set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.metrics import MEMORY_PARTS, MEMORY_READINGS, STATE_PARTS
from parabench.store.record import Phase
from parabench.store.results import records
from parabench.strategies import entry_of
from parabench.strategies.memory import Shape

# A row of a state table.
State = Mapping[str, Any]

PARTS = STATE_PARTS
# Farther than this from its formula a strategy holds something else: what is right agrees to a few tensors' padding.
OFF = 0.05

SYMBOLS = (
    "K: bytes of all parameters; S: those that tensor parallel splits; E: those of FSDP's root unit (embeddings, "
    "final norm); n: ranks; m: ranks per node; t: ranks that share the layers."
)

COLUMNS = (
    "case_id", "label", "model", "strategy", "world_size", *PARTS, "measured", *(f"{part}_theory" for part in PARTS),
    "theory", "ratio", "formula", "exact", "why_unknown",
)  # fmt: skip
PHASE_COLUMNS = ["case_id", "label", "device", "part", *MEMORY_READINGS, "launches"]


def case_states(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration whose ranks counted their states, with COLUMNS, by world size and size.

    The parts are those of the rank that holds most, in the launch in which it did. `theory` is NaN without a formula or
    the sizes of the model; `why_unknown` is the launch's reason. `ratio` is measured / theory. `exact` is False if the
    formula is only an even split.
    """
    rows = seen.results.whole
    rows = rows[(rows["phase"] == Phase.MEASURE) & rows["metric"].isin(PARTS)].astype({"value": float})
    held = rows.pivot_table("value", ["launch_id", "rank"], "metric", "max").reindex(columns=list(PARTS)).dropna()
    held = held.assign(measured=held.sum(axis=1)).reset_index("launch_id")
    case_of = seen.counted.set_index("launch_id")["case"]
    held["case"] = held["launch_id"].map(case_of).astype(object)  # without a launch it would be float
    most = held.sort_values("measured", ascending=False, kind="stable").drop_duplicates("case")
    firsts = seen.counted.drop_duplicates("case").merge(most.drop(columns="launch_id"), on="case")
    return pd.DataFrame([_state(seen, row) for row in firsts.to_dict("records")], columns=list(COLUMNS)).sort_values(
        ["world_size", "measured", "label"], kind="stable", ignore_index=True
    )


def _state(seen: SessionData, row: dict[Any, Any]) -> dict[Any, Any]:
    """Return the row of `case_states` for a configuration's first launch."""
    facts = seen.facts[row["launch_id"]]
    why_unknown = (facts.get("model") or {}).get("no_formula")
    formula = None if why_unknown else entry_of(row["strategy"]).memory
    shape = _shape(facts, row)
    expected = (math.nan,) * len(PARTS)
    if formula is not None and shape is not None:
        state = formula.state(shape)
        expected = (state.parameters, state.gradients, state.optimizer)
    return row | {
        "case_id": row["case"],
        **{f"{part}_theory": size for part, size in zip(PARTS, expected, strict=True)},
        "theory": sum(expected),
        "ratio": row["measured"] / sum(expected),
        "formula": formula.text if formula else None,
        "exact": formula is not None and formula.exact,
        "why_unknown": why_unknown,
    }


def _shape(facts: Mapping[str, Any], row: Mapping[Any, Any]) -> Shape | None:
    """Return the sizes of a launch's model and the arrangement of its ranks; None if it recorded no sizes."""
    model, units, ranks = facts.get("model") or {}, facts.get("unit_bytes"), int(row["world_size"])
    if "bytes" not in model:
        return None
    return Shape(
        whole=float(model["bytes"]),
        tensor=float(model.get("tensor_parallel_bytes", math.nan)),
        root=float(units[-1]) if units else math.nan,
        ranks=ranks,
        sharing=int(row["tp_size"]) if format.known(row["tp_size"]) else ranks,
        node=int(row["ranks_per_node"]) if format.known(row["ranks_per_node"]) else ranks,
    )


def sentences(states: pd.DataFrame) -> list[str]:
    """Return for each model which case holds least, against one device's, and how measured and theory compare."""
    models: dict[str, list[State]] = {}
    for state in records(states, COLUMNS):
        models.setdefault(state["model"], []).append(state)
    return [
        (f"{model}: " if len(models) > 1 else "") + " ".join([*_least(own), *_against_theory(own)])
        for model, own in models.items()
    ]


def compared(states: pd.DataFrame) -> list[str]:
    """The same where there are strategies to compare, and nothing where there is one: for the head of a report, which
    most sessions fill with their times."""
    return sentences(states) if len(set(states["strategy"])) > 1 else []


def _least(states: list[State]) -> list[str]:
    """Return the cases that hold least and most. Those that are not ranked, such as `local_only`, do not count."""
    ranked = [state for state in states if entry_of(state["strategy"]).ranked]
    if not ranked:
        return []
    least, most = (pick(state["measured"] for state in ranked) for pick in (min, max))
    lowest, highest = (
        format.listed((state["label"] for state in ranked if state["measured"] == held), most=3)
        for held in (least, most)
    )
    found = [f"Lowest peak training state per rank: {lowest}: {format.mebibytes(least)}."]
    if most > least:
        times = f"{format.mebibytes(most)}, {format.digits(most / least, 2)} times as much"
        found.append(f"Highest: {highest}: {times}.")
    return found


def _against_theory(states: list[State]) -> list[str]:
    known = [state for state in states if format.known(state["ratio"])]
    said = []
    for exact, formula in ((True, "the formula"), (False, "the formula for an even split")):
        if own := [state for state in known if state["exact"] is exact]:
            said.append(f"Measured memory is {_between(own)} {formula} in {format.count(len(own), 'case')}.")
    off = [state["strategy"] for state in known if state["exact"] and abs(state["ratio"] - 1) > OFF]
    if off:
        said.append(f"More than {100 * OFF:g}% off the formula: {format.joined(dict.fromkeys(off))}.")
    unknown: dict[str | None, list[str]] = {}
    for state in states:
        if not format.known(state["ratio"]):
            unknown.setdefault(state["why_unknown"], []).append(state["strategy"])
    for why, strategies in unknown.items():
        names = format.listed(dict.fromkeys(strategies), most=3)
        because = f", because {why}" if why else ""
        said.append(f"No formula for {format.count(len(strategies), 'case')}: {names}{because}.")
    return said


def _between(states: list[State]) -> str:
    """Return '1.01 times' or '1.00 to 1.01 times'."""
    ratios = [state["ratio"] for state in states]
    low, high = (f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return f"{low} times" if low == high else f"{low} to {high} times"


def memory_phases(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration and part of the step, with PHASE_COLUMNS, in bytes; unknown is NaN.

    A launch's numbers are those of the rank with the most reserved memory in any part (on the CPU, resident memory),
    each the largest over its instrumented steps. A configuration's are the medians over launches.
    """
    names = {f"{part}_{reading}": (part, reading) for part in MEMORY_PARTS for reading in MEMORY_READINGS}
    rows = seen.rows("instrumented")
    rows = rows[rows["metric"].isin(names)]
    told = rows["metric"].map(names)
    rows = rows.assign(part=told.str[0], reading=told.str[1], value=pd.to_numeric(rows["value"]))
    most = rows.pivot_table(index=["launch_id", "rank", "part"], columns="reading", values="value", aggfunc="max")
    most = most.reindex(columns=list(MEMORY_READINGS)).reset_index()
    held = most["reserved_bytes"].fillna(most["rss_bytes"]).groupby([most["launch_id"], most["rank"]]).max()
    largest = pd.MultiIndex.from_tuples(held.dropna().groupby("launch_id").idxmax(), names=["launch_id", "rank"])
    own = most[pd.MultiIndex.from_frame(most[["launch_id", "rank"]]).isin(largest)]
    own = own.merge(seen.of_launch[["launch_id", "case_id"]], on="launch_id")
    groups = own.groupby(["case_id", "part"])
    table = groups[list(MEMORY_READINGS)].median().assign(launches=groups["launch_id"].nunique()).reset_index()
    table = seen.cases[["case_id", "label", "device"]].merge(table, on="case_id")
    order = {part: at for at, part in enumerate(MEMORY_PARTS)}
    table = table.sort_values("part", key=lambda parts: parts.map(order), kind="stable")
    return seen.cases[["case_id"]].merge(table, on="case_id")[PHASE_COLUMNS]
