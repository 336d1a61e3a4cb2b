"""What more ranks give, in words."""

from __future__ import annotations

from collections.abc import Iterator

from parabench.analysis.scaling import STRONG, Row, points
from parabench.analysis.session import SessionData
from parabench.analysis.text import format


def lines(seen: SessionData) -> Iterator[str]:
    """Of each kind of scaling that was measured from one rank on, and of what stays the same along it, the fastest at
    the largest world size: 'Strong scaling (global batch 8): ddp native, 2 ranks: 1.40 times the throughput of 1 rank,
    70 % of linear.'"""
    found: dict[int, list[Row]] = {}
    for point in seen.once(points):
        if point["ranked"] and point["base_world_size"] == 1 < point["world_size"]:
            found.setdefault(point["group"], []).append(point)
    for group in found.values():
        yield _sentence(max(group, key=lambda point: (point["world_size"], point["tokens_per_s"])), seen)


def _sentence(best: Row, seen: SessionData) -> str:
    strong = best["kind"] == STRONG
    same = f"global batch {best['global_batch']:,}" if strong else f"{best['batch_per_rank']:g} a rank"
    times = best["tokens_per_s"] / best["base_tokens_per_s"]
    label = seen.labels[best["case_id"]].removesuffix(f" (global batch {best['global_batch']})")
    return (
        f"{'Strong' if strong else 'Weak'} scaling ({same}): {label}: "
        f"{format.digits(times, 3)} times the throughput of 1 rank, {format.percent(best['efficiency'])} of linear."
    )
