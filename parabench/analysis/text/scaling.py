"""What more ranks give, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parabench.analysis.scaling import STRONG, curves
from parabench.analysis.session import SessionData
from parabench.analysis.text import format


def lines(seen: SessionData) -> Iterator[str]:
    """Of each kind of scaling that was measured from one rank on, and of what stays the same along it, the fastest at
    the largest world size: 'Strong scaling (global batch 8): ddp native, 2 ranks: 1.40 times the throughput of 1 rank,
    70 % of linear.'"""
    table = seen.once(curves)
    points = table[table["ranked"] & (table["base_world_size"] == 1) & (table["world_size"] > 1)]
    for _, group in points.groupby("group", sort=True):
        largest = group[group["world_size"] == group["world_size"].max()]
        yield _sentence(largest.loc[largest["tokens_per_s"].idxmax()].to_dict(), seen)


def _sentence(best: dict[Any, Any], seen: SessionData) -> str:
    strong = best["kind"] == STRONG
    same = f"global batch {best['global_batch']:,}" if strong else f"{best['batch_per_rank']:g} a rank"
    times = best["tokens_per_s"] / best["base_tokens_per_s"]
    label = seen.labels[best["case_id"]].removesuffix(f" (global batch {best['global_batch']})")
    return (
        f"{'Strong' if strong else 'Weak'} scaling ({same}): {label}: "
        f"{format.digits(times, 3)} times the throughput of 1 rank, {format.percent(best['efficiency'])} of linear."
    )
