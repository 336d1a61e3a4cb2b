"""The measured links between the ranks of a session, by tier, and as an explanation of two-level algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parabench.analysis import format
from parabench.analysis.session import Session
from parabench.collectives import TWO_LEVEL
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.store.results import Results

if TYPE_CHECKING:
    import pandas as pd

# The tiers, from the farthest, and their names in sentences.
ACROSS, NODE, DEVICE = "across nodes", "same node", "same device"
SAID = {ACROSS: "across nodes", NODE: "in a node", DEVICE: "on one device"}


@dataclass(frozen=True)
class Tier:
    """The links of one tier: the number of measured directions, medians, and the lowest and highest bandwidth.

    None is unknown.
    """

    name: str
    links: int
    latency_s: float | None
    bytes_per_s: float | None
    low: float | None
    high: float | None


def link_table(results: Results, session: Session) -> pd.DataFrame:
    """Return the session's links with their `tier`; no rows if they were not measured."""
    links = results.links
    table = links[links["session_id"] == session.id].drop(columns="session_id").reset_index(drop=True)
    table[["latency_s", "bytes_per_s"]] = table[["latency_s", "bytes_per_s"]].astype(float)
    # CPUs have no number, so two ranks can share only a CUDA device.
    shared = (table["from_device"] == table["to_device"]) & table["from_device"].str.startswith(f"{accelerator.TYPE}:")
    tier = shared.map({True: DEVICE, False: NODE})
    return table.assign(tier=tier.where(table["from_node"] == table["to_node"], ACROSS))


def tiers_of(links: pd.DataFrame) -> dict[str, Tier]:
    """Return the tiers of a `link_table`, from the farthest."""
    found = {}
    for name in SAID:
        tier_links = links[links["tier"] == name]
        if len(tier_links):
            latencies, rates = tier_links["latency_s"].dropna(), tier_links["bytes_per_s"].dropna()
            numbers = (latencies.median(), rates.median(), rates.min(), rates.max())
            found[name] = Tier(name, len(tier_links), *(format.number_or_none(number) for number in numbers))
    return found


def times_less(tiers: Mapping[str, Tier]) -> float | None:
    """Return the bandwidth in a node divided by the bandwidth across nodes; None if a value is unknown."""
    across, inside = (tiers[name].bytes_per_s if name in tiers else None for name in (ACROSS, NODE))
    return inside / across if inside and across else None


def tiers_said(tiers: Mapping[str, Tier]) -> str:
    """Return 'across nodes 0.024 GB/s, in a node 3.1 GB/s: 129 times less'; empty if no bandwidth is known."""
    known = [tier for tier in tiers.values() if tier.bytes_per_s]
    text = ", ".join(f"{SAID[tier.name]} {gigabytes(tier.bytes_per_s)}" for tier in known)
    times = times_less(tiers)
    if times is None:
        return text
    return f"{text}: {format.digits(max(times, 1 / times), 2)} times {'less' if times > 1 else 'more'}"


def gigabytes(bytes_per_s: float | None) -> str:
    """Return a bandwidth: '3.1 GB/s'."""
    return f"{format.digits(bytes_per_s / 1e9, 2)} GB/s" if format.known(bytes_per_s) else format.UNKNOWN


def microseconds(seconds: float | None) -> str:
    """Return a latency: '57 µs'."""
    return f"{format.digits(seconds * 1e6, 2)} µs" if format.known(seconds) else format.UNKNOWN


def explained(best: Case, others: Sequence[Case], tiers: Mapping[str, Tier]) -> str:
    """Return the tiers, and the bytes that the best sends across nodes if it is a two-level algorithm.

    Empty if all ran on one node, or a tier is unknown. `collectives/two_level.py` derives the bytes.
    """
    if times_less(tiers) is None or max(case.nodes for case in (best, *others)) < 2:
        return ""
    text = f"Measured links: {tiers_said(tiers)}."
    m, n = best.nodes, best.world_size
    if m < 2 or not best.algorithm.startswith(TWO_LEVEL):
        return text
    return (
        f"{text} To all-reduce S bytes, two levels with a ring across m = {m} nodes send 2(m-1)/m S = "
        f"{2 * (m - 1) / m:.3g} S per node; a flat ring of n = {n} ranks sends 2(n-1)/n S = {2 * (n - 1) / n:.3g} S."
    )
