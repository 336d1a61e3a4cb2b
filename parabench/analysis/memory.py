"""Compare the measured model states of ranks (parameters, gradients, optimizer states) with their formulas.

Activations and communication buffers do not count. `parabench.probes.memory` measures the states, and
`parabench.strategies` has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.metrics import STATE_PARTS
from parabench.store.record import Phase
from parabench.store.results import records
from parabench.strategies import ModelShape, entry_of

PARTS = STATE_PARTS
# A larger difference from the formula is reported. The padding of tensors causes less.
_TOLERANCE = 0.05

SYMBOLS = (
    "K: bytes of all parameters; S: parameters that tensor parallel splits; E: parameters of FSDP's root unit "
    "(embeddings, final norm); n: ranks; m: ranks per node; t: ranks that share the layers."
)

_BY_FORMULA = ["theory", "formula", "exact", "why_unknown"]
COLUMNS = [
    "case_id", "label", "model", "strategy", "world_size", *PARTS, "measured", "ratio", *_BY_FORMULA,
]  # fmt: skip


def case_states(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration with measured model states, sorted by world size and `measured`.

    - PARTS and `measured`: the bytes of each part and their sum, of the launch and rank with the largest sum
    - `theory`: the sum by the strategy's `formula`, NaN with `why_unknown` if there is none
    - `ratio`: measured / theory
    - `exact`: whether the formula is exact; otherwise it assumes an even split
    """
    rows = seen.results.whole
    rows = rows[(rows["phase"] == Phase.MEASURE) & rows["metric"].isin(PARTS)]
    ranks = rows.pivot_table("value", ["launch_id", "rank"], "metric", aggfunc="last", observed=True)
    ranks = ranks.reindex(columns=list(PARTS)).astype(float).dropna()
    ranks = ranks.assign(measured=ranks.sum(axis=1)).reset_index("rank")
    table = seen.counted.rename(columns={"case": "case_id"}).merge(ranks, on="launch_id")
    table = table.sort_values("measured", ascending=False, kind="stable").drop_duplicates("case_id")
    theory = pd.DataFrame([_theory(seen, row) for row in records(table)], table.index, columns=_BY_FORMULA)
    table = table.join(theory.astype({"theory": float}))
    table["ratio"] = table["measured"] / table["theory"]
    return table.sort_values(["world_size", "measured", "label"], kind="stable", ignore_index=True)[COLUMNS]


def _theory(seen: SessionData, row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the columns _BY_FORMULA, which the formula of the launch's strategy determines."""
    facts = seen.facts[row["launch_id"]]
    model, units, ranks = facts.get("model") or {}, facts.get("unit_bytes"), int(row["world_size"])
    why_unknown = model.get("no_formula")
    formula = None if why_unknown else entry_of(row["strategy"]).memory
    size = math.nan
    if formula is not None and "bytes" in model:
        shape = ModelShape(
            whole=float(model["bytes"]),
            tensor=float(model.get("tensor_parallel_bytes", math.nan)),
            root=float(units[-1]) if units else math.nan,
            ranks=ranks,
            sharing=int(row["tp_size"]) if format.known(row["tp_size"]) else ranks,
            node=int(row["ranks_per_node"]) if format.known(row["ranks_per_node"]) else ranks,
        )
        size = sum(formula.states(shape))
    return {
        "theory": size,
        "formula": formula.text if formula else None,
        "exact": formula is not None and formula.exact,
        "why_unknown": why_unknown,
    }


def sentences(states: pd.DataFrame) -> list[str]:
    """Return one text per model: the cases with the smallest and largest states, and measured against theory."""
    models: list[Any] = states["model"].unique().tolist()
    groups = [states[states["model"] == model] for model in models]
    return [
        f"{model}: " * (len(models) > 1) + " ".join([*_extremes(own), *_against_theory(own)])
        for model, own in zip(models, groups, strict=True)
    ]


def compared(states: pd.DataFrame) -> list[str]:
    """Return `sentences` if the states are of two or more strategies; otherwise an empty list."""
    return sentences(states) if states["strategy"].nunique() > 1 else []


def _extremes(states: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about the ranked cases with the smallest and the largest model states."""
    ranked = states[[entry_of(strategy).ranked for strategy in states["strategy"]]]
    if len(ranked):
        least, most = ranked["measured"].min(), ranked["measured"].max()
        lowest, highest = (format.listed(ranked["label"][ranked["measured"] == one], most=3) for one in (least, most))
        yield f"Smallest model states per rank: {lowest}: {format.mebibytes(least)}."
        if most > least:
            times = f"{format.mebibytes(most)}, {format.digits(most / least, 2)} times as much"
            yield f"Largest: {highest}: {times}."


def _against_theory(states: pd.DataFrame) -> Iterator[str]:
    """Yield sentences that compare the measured states with the formulas."""
    known, unknown = states[states["ratio"].notna()], states[states["ratio"].isna()]
    exact = known["exact"].astype(bool)
    for own, formula in ((known[exact], "the formula"), (known[~exact], "the formula for an even split")):
        if len(own):
            between = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (own["ratio"].min(), own["ratio"].max())))
            yield f"Measured memory is {between} times {formula} in {format.count(len(own), 'configuration')}."
    off = known["strategy"][exact & ((known["ratio"] - 1).abs() > _TOLERANCE)]
    if len(off):
        yield f"More than {100 * _TOLERANCE:g}% off the formula: {format.joined(off.unique())}."
    reasons: Any = unknown.fillna({"why_unknown": ""}).groupby("why_unknown", sort=False)
    for why, own in reasons:
        names, because = format.listed(own["strategy"].unique(), most=3), f", because {why}" if why else ""
        yield f"No formula for {format.count(len(own), 'configuration')}: {names}{because}."
