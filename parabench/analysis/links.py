"""What lies between the ranks of a session, as it was measured: links by their tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parabench.analysis.session import Session
from parabench.analysis.text import format
from parabench.machine import accelerator
from parabench.store.results import Results

if TYPE_CHECKING:
    import pandas as pd

# The tiers, from the farthest, and how each is said of links.
ACROSS, NODE, DEVICE = "across nodes", "same node", "same device"
SAID = {ACROSS: "across nodes", NODE: "in a node", DEVICE: "on one device"}

# Tiers whose links carry less than that many times one another's are said to be alike: links of one tier on a busy
# machine differ by as much.
ALIKE = 1.5


@dataclass(frozen=True)
class Tier:
    """The links of one tier: how many directions were measured, the medians of their latency and bandwidth, and the
    slowest and the fastest of them. None is unknown."""

    name: str
    links: int
    latency_s: float | None
    bytes_per_s: float | None
    low: float | None
    high: float | None


def link_table(results: Results, session: Session) -> pd.DataFrame:
    """The session's links with their `tier`; no row where nobody measured them."""
    links = results.links
    own = links[links["session_id"] == session.id].drop(columns="session_id").reset_index(drop=True)
    own[["latency_s", "bytes_per_s"]] = own[["latency_s", "bytes_per_s"]].astype(float)
    # CPUs have no number: two ranks of a node are on one device only where that is CUDA's.
    shared = (own["from_device"] == own["to_device"]) & own["from_device"].str.startswith(f"{accelerator.TYPE}:")
    tier = shared.map({True: DEVICE, False: NODE})
    return own.assign(tier=tier.where(own["from_node"] == own["to_node"], ACROSS))


def tiers_of(links: pd.DataFrame) -> dict[str, Tier]:
    """The tiers that there are, from the farthest, of what `link_table` gives."""
    found = {}
    for name in SAID:
        own = links[links["tier"] == name]
        if len(own):
            latencies, rates = own["latency_s"].dropna(), own["bytes_per_s"].dropna()
            numbers = (latencies.median(), rates.median(), rates.min(), rates.max())
            found[name] = Tier(name, len(own), *(format.number_or_none(number) for number in numbers))
    return found


def node_medians(links: pd.DataFrame, number: str) -> dict[tuple[int, int], float]:
    """The median of a number, `latency_s` or `bytes_per_s`, over the links from each node to each."""
    medians = links.groupby(["from_node", "to_node"])[number].median()
    return {ends: float(value) for ends, value in zip(medians.index.tolist(), medians, strict=True)}


def times_less(tiers: Mapping[str, Tier]) -> float | None:
    """How many times less links across nodes carry than those in a node; None where one of the two is unknown."""
    across, inside = (tiers[name].bytes_per_s if name in tiers else None for name in (ACROSS, NODE))
    return inside / across if inside and across else None


def tiers_said(tiers: Mapping[str, Tier]) -> str:
    """'across nodes 0.024 GB/s, in a node 3.1 GB/s: 129 times less'; empty where no bandwidth is known."""
    known = [tier for tier in tiers.values() if tier.bytes_per_s]
    said = ", ".join(f"{SAID[tier.name]} {gigabytes(tier.bytes_per_s)}" for tier in known)
    times = times_less(tiers)
    if times is None:
        return said
    if 1 / ALIKE < times < ALIKE:
        return f"{said}: about as much"
    return f"{said}: {format.digits(max(times, 1 / times), 2)} times {'less' if times > 1 else 'more'}"


def gigabytes(bytes_per_s: float | None) -> str:
    """A bandwidth: '3.1 GB/s'."""
    return f"{format.digits(bytes_per_s / 1e9, 2)} GB/s" if format.known(bytes_per_s) else format.UNKNOWN


def microseconds(seconds: float | None) -> str:
    """A latency: '57 µs'."""
    return f"{format.digits(seconds * 1e6, 2)} µs" if format.known(seconds) else format.UNKNOWN
