"""What a rank holds of the training state, parameters, gradients and optimizer state: measured, and by formula.

The formulas are those of `parabench.strategies.memory`. What is counted, and when, says `parabench.probes.memory`:
activations and communication buffers are not.
"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.store.metrics import STATE_PARTS
from parabench.store.record import Phase
from parabench.strategies import entry_of
from parabench.strategies.memory import Shape

PARTS = STATE_PARTS
# Farther than this from its formula a strategy holds something else: what is right agrees to a few tensors' padding.
OFF = 0.05

SYMBOLS = (
    "K: bytes of all parameters; S: those that tensor parallel splits; E: those of FSDP's root unit (embeddings, "
    "final norm); n: ranks; m: ranks per node; t: ranks that share the layers."
)

COLUMNS = (
    "case_id", "label", "model", "strategy", "world_size", *PARTS, "measured", *(f"{part}_theory" for part in PARTS),
    "theory", "ratio", "formula", "exact",
)  # fmt: skip


def case_states(seen: SessionData) -> pd.DataFrame:
    """One row per case whose ranks told what they hold, with COLUMNS, by world size and then by what is measured.

    The parts are those of the rank that holds most, in the launch in which it did; `theory` is NaN where there is no
    formula or the launch did not tell what it needs, `ratio` is measured / theory. `exact` is False where theory can
    only be an even split.
    """
    good, rows = seen.valid, seen.rows("whole")
    rows = rows[rows["metric"].isin(PARTS) & (rows["phase"] == Phase.MEASURE)]
    held = pd.DataFrame({part: _by_rank(rows[rows["metric"] == part]) for part in PARTS}).dropna().sort_index()
    case_of = good.set_index("launch_id")["case_id"]
    held = held.assign(
        _held=held.sum(axis="columns"), case_id=case_of.reindex(held.index.get_level_values(0)).to_numpy()
    )
    most_of = held.sort_values("_held", ascending=False, kind="stable").drop_duplicates("case_id").set_index("case_id")
    table = []
    firsts = good.drop_duplicates("case_id")
    firsts = firsts[firsts["case_id"].isin(most_of.index)]
    mosts = most_of.loc[firsts["case_id"], list(PARTS)].to_numpy(dtype=float)
    for first, most in zip(firsts[list(_TOLD)].to_dict("records"), mosts, strict=True):
        case_id = first["case_id"]
        formula = entry_of(str(first["strategy"])).memory
        shape = shape_of(first)
        theory = formula.state(shape) if formula is not None and shape is not None else None
        expected = [theory.parameters, theory.gradients, theory.optimizer] if theory else [float("nan")] * 3
        table.append(
            {"case_id": case_id}
            | {name: first[name] for name in ("label", "model", "strategy")}
            | {"world_size": int(first["world_size"])}
            | dict(zip(PARTS, most.tolist(), strict=True))
            | {f"{part}_theory": value for part, value in zip(PARTS, expected, strict=True)}
            | {"measured": float(most.sum()), "theory": sum(expected), "ratio": float(most.sum()) / sum(expected)}
            | {"formula": formula.text if formula else None, "exact": formula is not None and formula.exact}
        )
    frame = pd.DataFrame(table, columns=list(COLUMNS))
    return frame.sort_values(["world_size", "measured", "label"], kind="stable").reset_index(drop=True)


def _by_rank(rows: pd.DataFrame) -> pd.Series[float]:
    """One metric's values by launch and rank; the largest where a rank told several."""
    keys = ["launch_id", "rank"]
    values: pd.Series[float] = rows.set_index(keys)["value"]
    return values if values.index.is_unique else values.groupby(level=keys).max()


# What of a launch says what its ranks should hold.
_TOLD = ("case_id", "label", "model", "strategy", "world_size", "tp_size", "ranks_per_node", "facts")


def sentences(states: pd.DataFrame) -> list[str]:
    """What a state table answers, a sentence or more for each model: which case holds least on the rank that holds
    most, against one device's, and how measured and theory compare."""
    several = states["model"].nunique() > 1
    return [
        (f"{model}: " if several else "") + " ".join([*_least(own), *_against_theory(own)])
        for model, own in states.groupby("model", sort=False)
    ]


def compared(states: pd.DataFrame) -> list[str]:
    """The same where there are strategies to compare, and nothing where there is one: for the head of a report, which
    most sessions fill with their times."""
    return sentences(states) if states["strategy"].nunique() > 1 else []


def _least(states: pd.DataFrame) -> list[str]:
    """The first two sentences. What is no answer, such as training without exchange, holds neither least nor most."""
    ordered = states[[entry_of(str(strategy)).ranked for strategy in states["strategy"]]]
    if ordered.empty:
        return []
    least, most = ordered["measured"].min(), ordered["measured"].max()
    if least == most:
        whom = "Every case holds" if len(ordered) > 1 else f"{ordered['label'].iloc[0]} holds"
        return [f"{whom} {format.mebibytes(least)} of training state per rank (the largest rank)."]
    holders = ordered[ordered["measured"] == least]
    said = f"Lowest peak training state per rank: {format.listed(_names(holders), most=3)}: "
    said += f"{format.mebibytes(least)}."
    for strategy, name in (("single", "One device"), ("ddp", "ddp")):
        whole = ordered[(ordered["strategy"] == strategy) & (ordered["measured"] > least)]
        if len(whole):
            held = float(whole["measured"].iloc[0])
            return [said, f"{name} holds {format.mebibytes(held)}, {format.digits(held / least, 2)} times as much."]
    holders = ordered[ordered["measured"] == most]
    times = f"{format.mebibytes(most)}, {format.digits(most / least, 2)} times as much"
    return [said, f"Most: {format.listed(_names(holders), most=3)}: {times}."]


def _names(holders: pd.DataFrame) -> list[str]:
    """A case's label, or strategy and ranks of several cases alike in them."""
    return [
        str(own["label"].iloc[0]) if len(own) == 1 else f"{strategy}, {format.count(int(str(world_size)), 'rank')}"
        for (strategy, world_size), own in holders.groupby(["strategy", "world_size"], sort=False)
    ]


def _against_theory(states: pd.DataFrame) -> list[str]:
    known = states[states["ratio"].notna()]
    exact, uneven = known[known["exact"].astype(bool)], known[~known["exact"].astype(bool)]
    said = []
    if len(exact):
        said.append(f"Measured memory is {_between(exact)} the formula in {format.count(len(exact), 'case')}.")
    off = exact[(exact["ratio"] - 1).abs() > OFF]
    if len(off):
        names = format.joined(dict.fromkeys(off["strategy"]))
        said.append(f"More than {100 * OFF:g} % off the formula: {names}.")
    if len(uneven):
        names = " and ".join(dict.fromkeys(uneven["strategy"]))
        cases = format.count(len(uneven), "case")
        said.append(f"For {names}, the formula is an even split: measured is {_between(uneven)} it in {cases}.")
    unknown = states[states["ratio"].isna()]
    if len(unknown):
        names = format.listed(dict.fromkeys(unknown["strategy"]), most=3)
        said.append(f"No formula for {format.count(len(unknown), 'case')}: {names}.")
    return said


def _between(states: pd.DataFrame) -> str:
    """'equal to', '1.01 times' or '1.00 to 1.01 times'."""
    if (states["measured"] == states["theory"]).all():
        return "equal to"
    low, high = (f"{ratio:.2f}" for ratio in (states["ratio"].min(), states["ratio"].max()))
    return f"{low} times" if low == high else f"{low} to {high} times"


def shape_of(launch: Any) -> Shape | None:
    """The sizes that a launch told, with its case's ranks; None when it told none."""
    facts = json.loads(launch["facts"]) if isinstance(launch["facts"], str) else {}
    model = facts.get("model") or {}
    if "bytes" not in model:
        return None
    ranks = int(launch["world_size"])

    def option(name: str, instead: int) -> int:
        return instead if pd.isna(launch[name]) else int(launch[name])

    units = facts.get("unit_bytes")
    return Shape(
        whole=float(model["bytes"]),
        tensor=float(model.get("tensor_parallel_bytes", float("nan"))),
        root=float(units[-1]) if units else float("nan"),
        ranks=ranks,
        sharing=option("tp_size", ranks),
        node=option("ranks_per_node", ranks),
    )
