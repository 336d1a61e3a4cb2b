"""The model states of a rank (parameters, gradients, optimizer state).

They are measured, without activations and communication buffers (`parabench.probes.memory`), and computed by the
formulas of `parabench.strategies`.
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
# A strategy that differs more from its formula holds something else, because the padding of tensors is smaller.
OFF = 0.05

SYMBOLS = (
    "K: bytes of all parameters; S: parameters that tensor parallel splits; E: parameters of FSDP's root unit "
    "(embeddings, final norm); n: ranks; m: ranks per node; t: ranks that share the layers."
)

_LAUNCH = ["launch_id", "case", "label", "model", "strategy", "world_size", "tp_size", "ranks_per_node"]
_THEORY = [f"{part}_theory" for part in PARTS]
COLUMNS = [
    "case_id", "label", "model", "strategy", "world_size", *PARTS, "measured", *_THEORY, "theory", "ratio", "formula",
    "exact", "why_unknown",
]  # fmt: skip


def case_states(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration whose ranks counted their states, with COLUMNS, by world size and size.

    The parts come from the launch and rank with the most memory. `theory` is NaN if it is unknown, with the reason in
    `why_unknown`. `ratio` is measured / theory. `exact` is False if the formula is only an even split.
    """
    rows = seen.results.whole
    rows = rows[(rows["phase"] == Phase.MEASURE) & rows["metric"].isin(PARTS)]
    held: dict[int, dict[int, dict[str, float]]] = {}
    for at, rank, part, size in rows[["launch_id", "rank", "metric", "value"]].itertuples(index=False, name=None):
        held.setdefault(at, {}).setdefault(rank, {})[part] = size
    firsts: dict[str, dict[Any, Any]] = {}
    most: dict[str, dict[str, float]] = {}
    for launch in records(seen.counted[_LAUNCH]):
        firsts.setdefault(launch["case"], launch)
        for parts in held.get(launch["launch_id"], {}).values():
            whole = len(parts) == len(PARTS) and all(map(format.known, parts.values()))
            if whole and sum(parts.values()) > sum(most.get(launch["case"], {}).values()):
                most[launch["case"]] = parts
    table = pd.DataFrame(
        [
            firsts[case] | {"case_id": case} | parts | {"measured": sum(parts.values())} | _theory(seen, firsts[case])
            for case, parts in most.items()
        ],
        columns=COLUMNS,
    )
    table = table.astype(dict.fromkeys((*PARTS, "measured", *_THEORY), float))
    table["theory"] = table[_THEORY].sum(axis=1, skipna=False)
    table["ratio"] = table["measured"] / table["theory"]
    return table.sort_values(["world_size", "measured", "label"], kind="stable", ignore_index=True)


def _theory(seen: SessionData, row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the model states of a launch by the formula of its strategy."""
    facts = seen.facts[row["launch_id"]]
    model, units, ranks = facts.get("model") or {}, facts.get("unit_bytes"), int(row["world_size"])
    why_unknown = model.get("no_formula")
    formula = None if why_unknown else entry_of(row["strategy"]).memory
    sizes = [math.nan] * len(PARTS)
    if formula is not None and "bytes" in model:
        shape = ModelShape(
            whole=float(model["bytes"]),
            tensor=float(model.get("tensor_parallel_bytes", math.nan)),
            root=float(units[-1]) if units else math.nan,
            ranks=ranks,
            sharing=int(row["tp_size"]) if format.known(row["tp_size"]) else ranks,
            node=int(row["ranks_per_node"]) if format.known(row["ranks_per_node"]) else ranks,
        )
        sizes = list(formula.states(shape))
    return dict(zip(_THEORY, sizes, strict=True)) | {
        "formula": formula.text if formula else None,
        "exact": formula is not None and formula.exact,
        "why_unknown": why_unknown,
    }


def sentences(states: pd.DataFrame) -> list[str]:
    """Return for each model which cases hold least and most, and how measured and theory compare."""
    models: list[Any] = states["model"].unique().tolist()
    groups = [states[states["model"] == model] for model in models]
    return [
        f"{model}: " * (len(models) > 1) + " ".join([*_extremes(own), *_against_theory(own)])
        for model, own in zip(models, groups, strict=True)
    ]


def compared(states: pd.DataFrame) -> list[str]:
    """Return `sentences` if there are several strategies to compare."""
    return sentences(states) if states["strategy"].nunique() > 1 else []


def _extremes(states: pd.DataFrame) -> Iterator[str]:
    """Yield the ranked cases that hold least and most."""
    ranked = states[[entry_of(strategy).ranked for strategy in states["strategy"]]]
    if len(ranked):
        least, most = ranked["measured"].min(), ranked["measured"].max()
        lowest, highest = (format.listed(ranked["label"][ranked["measured"] == one], most=3) for one in (least, most))
        yield f"Smallest model states per rank: {lowest}: {format.mebibytes(least)}."
        if most > least:
            times = f"{format.mebibytes(most)}, {format.digits(most / least, 2)} times as much"
            yield f"Largest: {highest}: {times}."


def _against_theory(states: pd.DataFrame) -> Iterator[str]:
    known, unknown = states[states["ratio"].notna()], states[states["ratio"].isna()]
    exact = known["exact"].astype(bool)
    for own, formula in ((known[exact], "the formula"), (known[~exact], "the formula for an even split")):
        if len(own):
            between = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (own["ratio"].min(), own["ratio"].max())))
            yield f"Measured memory is {between} times {formula} in {format.count(len(own), 'configuration')}."
    off = known["strategy"][exact & ((known["ratio"] - 1).abs() > OFF)]
    if len(off):
        yield f"More than {100 * OFF:g}% off the formula: {format.joined(off.unique())}."
    reasons: Any = unknown.fillna({"why_unknown": ""}).groupby("why_unknown", sort=False)
    for why, own in reasons:
        names, because = format.listed(own["strategy"].unique(), most=3), f", because {why}" if why else ""
        yield f"No formula for {format.count(len(own), 'configuration')}: {names}{because}."
