"""Summarize the measured links between the ranks of a session by tier, and warn about slow links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from parabench.analysis import format
from parabench.analysis.session import Session
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.store.record import Finding
from parabench.store.results import Results

if TYPE_CHECKING:
    import pandas as pd

# The tiers of links, and {tier: its name in sentences} from the farthest.
ACROSS, NODE, DEVICE = "across nodes", "same node", "same device"
TIERS = {ACROSS: "across nodes", NODE: "in a node", DEVICE: "on one device"}


def link_table(results: Results, session: Session) -> pd.DataFrame:
    """Return one row per measured direction of a link. `tier` is ACROSS, NODE or DEVICE."""
    links = results.links
    table = links[links["session_id"] == session.id].drop(columns="session_id").reset_index(drop=True)
    table[["latency_s", "bytes_per_s"]] = table[["latency_s", "bytes_per_s"]].astype(float)
    # CPUs have no number, so two ranks can share only a CUDA device.
    shared = (table["from_device"] == table["to_device"]) & table["from_device"].str.startswith(f"{accelerator.TYPE}:")
    tier = shared.map({True: DEVICE, False: NODE})
    return table.assign(tier=tier.where(table["from_node"] == table["to_node"], ACROSS))


def tiers_of(links: pd.DataFrame) -> pd.DataFrame:
    """Return one row per tier of a `link_table`, from the farthest; unknown is NaN.

    - `tier` (index) and `links`: its name, and the number of measured directions
    - `latency_s` and `bytes_per_s`: medians
    - `low` and `high`: the lowest and the highest bandwidth, bytes/s
    """
    table = links.groupby("tier").agg(
        links=("tier", "size"),
        latency_s=("latency_s", "median"),
        bytes_per_s=("bytes_per_s", "median"),
        low=("bytes_per_s", "min"),
        high=("bytes_per_s", "max"),
    )
    return table.loc[[tier for tier in TIERS if tier in table.index]]


def times_less(tiers: pd.DataFrame) -> float:
    """Return the bandwidth in a node divided by the bandwidth across nodes; NaN if a value is unknown."""
    across, inside = tiers["bytes_per_s"].reindex([ACROSS, NODE])
    return float(inside / across)


def tiers_text(tiers: pd.DataFrame) -> str:
    """Return 'across nodes 0.024 GB/s, in a node 3.1 GB/s: 129 times less'; empty if no bandwidth is known."""
    rates, times = tiers["bytes_per_s"].dropna(), times_less(tiers)
    text = ", ".join(f"{TIERS[str(tier)]} {gigabytes(rate)}" for tier, rate in rates.items())
    if not format.known(times):
        return text
    return f"{text}: {format.digits(max(times, 1 / times), 2)} times {'less' if times > 1 else 'more'}"


def gigabytes(bytes_per_s: float | None) -> str:
    """Return a bandwidth in bytes/s as text: '3.1 GB/s'."""
    return f"{format.digits(bytes_per_s / 1e9, 2)} GB/s" if format.known(bytes_per_s) else format.UNKNOWN


def microseconds(seconds: float | None) -> str:
    """Return a latency in seconds as text: '57 µs'."""
    return f"{format.digits(seconds * 1e6, 2)} µs" if format.known(seconds) else format.UNKNOWN


def explained(best: Case, others: Sequence[Case], tiers: pd.DataFrame) -> str:
    """Return a sentence about the links in and across nodes; empty if all cases ran on one node, or if unknown."""
    if not format.known(times_less(tiers)) or max(case.nodes for case in (best, *others)) < 2:
        return ""
    return f"Measured links: {tiers_text(tiers)}."


# ---- warnings: a slow link, and a node or a rank with only slow links

# A link at a lower speed (half the lanes, one port instead of two, an older generation) carries half or less. Equal
# links on a busy machine carried 0.8 of their median or more.
_SLOW_BANDWIDTH = 0.7
# An additional switch costs less.
_SLOW_LATENCY = 2.0
# With fewer pairs, the median is a pair, so only the two directions of a pair can be compared.
_ENOUGH_PAIRS = 3
# The number of slow links that makes a node or rank slow. With one slow link, it may be the link.
_ENOUGH_PARTNERS = 2

_ADVICE = {
    "node": "Check that node's network interface (speed, errors, cable, switch port), or leave the node out.",
    "rank": "Check that rank's device: width and speed of its PCIe or NVLink, and its socket (Machine).",
    "pair": "Check the connection between the two (cable, switch, PCIe, NVLink), and other traffic on it.",
}


def check_links(links: pd.DataFrame) -> Iterator[Finding]:
    """Yield the warnings about a `link_table`. The links of a slow node or rank have no separate warnings."""
    unknown = links[links["bytes_per_s"].isna() | links["latency_s"].isna()]
    if len(unknown):
        reasons = format.listed(unknown["reason"].dropna().unique(), most=2)
        yield Finding(
            "links_unknown",
            f"{len(unknown)} of {format.count(len(links), 'direction')} between ranks could not be measured: "
            f"{reasons}.",
            "Resolve the reason, then measure again with --links (and --resume if launches are left).",
        )
    # CPU ranks of one host share memory, and message times depend on the scheduler. With four ranks on two busy
    # cores, they differed by a factor of five.
    known = links.drop(unknown.index)
    known = known[(known["tier"] == ACROSS) | (known["from_device"] != "cpu")]
    for tier, where in TIERS.items():
        of_tier = known[known["tier"] == tier]
        for end in ("node",) if tier == ACROSS else ("node", "rank"):
            ends = of_tier[[f"from_{end}", f"to_{end}"]]
            slow = {
                int(one): text for one in sorted(set(ends.stack())) if (text := _slow_end(of_tier, end, one, where))
            }
            for text in slow.values():
                yield Finding(f"slow_{end}_links", text, _ADVICE[end])
            of_tier = of_tier[~ends.isin(list(slow)).any(axis="columns")]
        for text in _slow_pairs(of_tier, "node" if tier == ACROSS else "rank", where):
            yield Finding("slow_link", text, _ADVICE["pair"])


def _slow_end(links_of_tier: pd.DataFrame, end: str, number: int, where: str) -> str:
    """Return a sentence if all links of a node or rank are slower than the median of the others; otherwise ''.

    `end` is node or rank, and `number` is its number.
    """
    sends, receives = links_of_tier[f"from_{end}"] == number, links_of_tier[f"to_{end}"] == number
    own, others = links_of_tier[sends | receives], links_of_tier[~(sends | receives)]
    if min(sends.sum(), receives.sum()) < _ENOUGH_PARTNERS or others.empty:
        return ""
    inside = end == "node" and where != TIERS[ACROSS]
    every = f"All links {'inside' if inside else 'of'} {end} {number}"
    (rate, latency), (typical, usual) = (rows[["bytes_per_s", "latency_s"]].median() for rows in (own, others))
    if (own["bytes_per_s"] < _SLOW_BANDWIDTH * typical).all():
        return f"{every}: median {gigabytes(rate)}; other links {where}: {gigabytes(typical)}."
    if (own["latency_s"] > _SLOW_LATENCY * usual).all():
        took = microseconds(latency)
        return f"{every}: a message takes {took} (median); other links {where}: {microseconds(usual)}."
    return ""


def _slow_pairs(links: pd.DataFrame, end: str, where: str) -> Iterator[str]:
    """Yield a sentence per pair of nodes or ranks (`end`) that is slower than the median, or slow in one direction."""
    ranks = links[["from_rank", "to_rank"]]
    pairs = links.groupby([ranks.min(axis="columns"), ranks.max(axis="columns")])
    typical, usual = links["bytes_per_s"].median(), links["latency_s"].median()
    few = len(pairs) < _ENOUGH_PAIRS
    for _, pair in pairs:
        slow = pair.sort_values("bytes_per_s").iloc[0]
        low, high, ends = slow["bytes_per_s"], pair["bytes_per_s"].max(), (slow[f"from_{end}"], slow[f"to_{end}"])
        between = f"Between {end} {min(ends)} and {end} {max(ends)}"
        median = "" if few else f"; the median {where} is {gigabytes(typical)}"
        if not few and high < _SLOW_BANDWIDTH * typical:
            yield f"{between}: {' and '.join(dict.fromkeys((gigabytes(low), gigabytes(high))))}{median}."
        elif low < _SLOW_BANDWIDTH * (high if few else typical):
            yield f"From {end} {ends[0]} to {end} {ends[1]}: {gigabytes(low)}, and back {gigabytes(high)}{median}."
        elif not few and (pair["latency_s"] > _SLOW_LATENCY * usual).all():
            took = microseconds(pair["latency_s"].median())
            yield f"{between}: a message takes {took}; the median {where} is {microseconds(usual)}."
