"""What a rank holds of the training state, parameters, gradients and optimizer state: measured, and by formula.

The formulas are those of `parabench.strategies.memory`. What is counted, and when, says `parabench.probes.memory`:
activations and communication buffers are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench import json_text
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.metrics import STATE_PARTS
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


def case_states(seen: SessionData) -> pd.DataFrame:
    """One row per case whose ranks told what they hold, with COLUMNS, by world size and then by what is measured.

    The parts are those of the rank that holds most, in the launch in which it did; `theory` is NaN where there is no
    formula or the launch did not tell what it needs, `ratio` is measured / theory. `exact` is False where theory can
    only be an even split. `why_unknown` is the launch's reason why the formula does not hold, None if there is none.
    """
    good = seen.numbers[seen.numbers["counted"]]
    case_of = dict(zip(good["launch_id"], good["case"], strict=True))
    most_of: dict[str, tuple[float, ...]] = {}
    for (launch_id, _), parts in _held(seen.results.whole).items():
        case = case_of.get(launch_id)
        if case is not None and (case not in most_of or sum(parts) > sum(most_of[case])):
            most_of[case] = parts
    firsts = {row["case"]: row for row in reversed(records(good, _TOLD)) if row["case"] in most_of}
    table = []
    for case, first in reversed(firsts.items()):
        why_unknown = facts_of(first).get("model", {}).get("no_formula")
        formula = None if why_unknown else entry_of(first["strategy"]).memory
        shape = shape_of(first)
        theory = formula.state(shape) if formula is not None and shape is not None else None
        expected = [theory.parameters, theory.gradients, theory.optimizer] if theory else [float("nan")] * 3
        measured = sum(most_of[case])
        told = [first[name] for name in ("case", "label", "model", "strategy", "world_size")]
        about = (formula.text if formula else None, formula is not None and formula.exact, why_unknown)
        table.append(
            (*told, *most_of[case], measured, *expected, sum(expected), measured / sum(expected), *about),
        )
    table.sort(key=lambda row: tuple(dict(zip(COLUMNS, row, strict=True))[name] for name in _ORDER))
    return pd.DataFrame(table, columns=list(COLUMNS))


_ORDER = ("world_size", "measured", "label")


def _held(whole: pd.DataFrame) -> dict[tuple[int, int], tuple[float, ...]]:
    """What each rank of each launch held, part by part, by launch and rank; the largest where a rank told several.
    Without ranks that did not tell all."""
    held: dict[tuple[int, int], list[float]] = {}
    timed = np.asarray(whole["phase"]) == Phase.MEASURE
    for at, part in enumerate(PARTS):
        rows = whole[timed & (np.asarray(whole["metric"]) == part)]
        for launch_id, rank, value in zip(*(np.asarray(rows[name]).tolist() for name in _NAMES), strict=True):
            parts = held.setdefault((launch_id, rank), [math.nan] * len(PARTS))
            parts[at] = value if not parts[at] > value else parts[at]
    return {at: tuple(held[at]) for at in sorted(held) if not math.isnan(sum(held[at]))}


_NAMES = ("launch_id", "rank", "value")

# What of a launch says what its ranks should hold.
_TOLD = ("case", "label", "model", "strategy", "world_size", "tp_size", "ranks_per_node", "facts")


def sentences(states: pd.DataFrame) -> list[str]:
    """What a state table answers, a sentence or more for each model: which case holds least on the rank that holds
    most, against one device's, and how measured and theory compare."""
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
    """The first two sentences. What is not ranked, such as `local_only`, holds neither least nor most."""
    ordered = [state for state in states if entry_of(state["strategy"]).ranked]
    if not ordered:
        return []
    least, most = (pick(state["measured"] for state in ordered) for pick in (min, max))
    if least == most:
        whom = "Every case holds" if len(ordered) > 1 else f"{ordered[0]['label']} holds"
        return [f"{whom} {format.mebibytes(least)} of training state per rank (the largest rank)."]
    said = f"Lowest peak training state per rank: {format.listed(_names(ordered, least), most=3)}: "
    said += f"{format.mebibytes(least)}."
    for strategy, name in (("single", "One device"), ("ddp", "ddp")):
        whole = [state["measured"] for state in ordered if state["strategy"] == strategy and state["measured"] > least]
        if whole:
            times = format.digits(whole[0] / least, 2)
            return [said, f"{name} holds {format.mebibytes(whole[0])}, {times} times as much."]
    times = f"{format.mebibytes(most)}, {format.digits(most / least, 2)} times as much"
    return [said, f"Most: {format.listed(_names(ordered, most), most=3)}: {times}."]


def _names(states: list[State], measured: float) -> list[str]:
    """Of the cases that hold so much: a case's label, or strategy and ranks of several cases alike in them."""
    alike: dict[tuple[str, int], list[str]] = {}
    for state in states:
        if state["measured"] == measured:
            alike.setdefault((state["strategy"], state["world_size"]), []).append(state["label"])
    return [
        labels[0] if len(labels) == 1 else f"{strategy}, {format.count(world_size, 'rank')}"
        for (strategy, world_size), labels in alike.items()
    ]


def _against_theory(states: list[State]) -> list[str]:
    known = [state for state in states if format.known(state["ratio"])]
    exact, uneven = ([state for state in known if state["exact"] is is_exact] for is_exact in (True, False))
    said = []
    if exact:
        said.append(f"Measured memory is {_between(exact)} the formula in {format.count(len(exact), 'case')}.")
    off = [state["strategy"] for state in exact if abs(state["ratio"] - 1) > OFF]
    if off:
        said.append(f"More than {100 * OFF:g} % off the formula: {format.joined(dict.fromkeys(off))}.")
    if uneven:
        names = " and ".join(dict.fromkeys(state["strategy"] for state in uneven))
        cases = format.count(len(uneven), "case")
        said.append(f"For {names}, the formula is an even split: measured is {_between(uneven)} it in {cases}.")
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
    """'equal to', '1.01 times' or '1.00 to 1.01 times'."""
    if all(state["measured"] == state["theory"] for state in states):
        return "equal to"
    ratios = [state["ratio"] for state in states]
    low, high = (f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return f"{low} times" if low == high else f"{low} to {high} times"


def shape_of(launch: Any) -> Shape | None:
    """The sizes that a launch told, with its case's ranks; None when it told none."""
    facts = facts_of(launch)
    model = facts.get("model") or {}
    if "bytes" not in model:
        return None
    ranks = int(launch["world_size"])

    def option(name: str, instead: int) -> int:
        return int(launch[name]) if format.known(launch[name]) else instead

    units = facts.get("unit_bytes")
    return Shape(
        whole=float(model["bytes"]),
        tensor=float(model.get("tensor_parallel_bytes", float("nan"))),
        root=float(units[-1]) if units else float("nan"),
        ranks=ranks,
        sharing=option("tp_size", ranks),
        node=option("ranks_per_node", ranks),
    )


def facts_of(launch: Any) -> dict[str, Any]:
    """Return the facts of a row of the launch table."""
    facts: dict[str, Any] = json_text.parsed(launch["facts"]) if isinstance(launch["facts"], str) else {}
    return facts
