"""What more ranks give, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parabench.analysis.scaling import STRONG, Row, points
from parabench.analysis.session import SessionData
from parabench.analysis.text import format


def lines(seen: SessionData) -> Iterator[str]:
    """Of each kind of scaling that was measured from one rank on, and of what stays the same along it, the fastest at
    each world size: 'Strong scaling (global batch 8), throughput by that of 1 rank: 1.40 (70 % of linear) of ddp
    native, 2 ranks; 2.10 (53 %) of fsdp ring, 4 ranks.'"""
    found: dict[int, dict[int, Row]] = {}
    for point in seen.once(points):
        known = format.known(point["speedup"])
        if known and point["ranked"] and point["base_world_size"] == 1 < point["world_size"]:
            best = found.setdefault(point["group"], {}).setdefault(point["world_size"], point)
            if point["speedup"] > best["speedup"]:
                found[point["group"]][point["world_size"]] = point
    for by_size in found.values():
        yield _sentence([by_size[size] for size in sorted(by_size)], seen.labels)


def _sentence(best: list[Row], labels: Mapping[str, str]) -> str:
    first = best[0]
    strong = first["kind"] == STRONG
    same = f"global batch {first['global_batch']:,}" if strong else f"{first['batch_per_rank']:g} a rank"
    said = []
    for point in best:
        times = format.digits(point["speedup"], 3)
        linear = format.percent(point["efficiency"]) + (" of linear" if point is first else "")
        label = labels[point["case_id"]].removesuffix(f" (global batch {point['global_batch']})")
        said.append(f"{times} ({linear}) of {label}")
    kind = "Strong" if strong else "Weak"
    return f"{kind} scaling ({same}), throughput by that of 1 rank: {'; '.join(said)}."
