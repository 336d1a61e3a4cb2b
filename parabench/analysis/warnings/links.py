"""Warnings about links: one that is slower than its like, and a node or a rank all of whose links are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis.links import ACROSS, SAID, gigabytes, link_table, microseconds
from parabench.analysis.session import SessionData
from parabench.analysis.text import format as words
from parabench.store.record import Finding

# A link that came up at a lower speed (half the lanes, one of two ports, a generation back) carries half or less. Links
# of one kind on a busy machine of two cores carried 0.8 of their median or more.
SLOW_BANDWIDTH = 0.7
# A switch more on the way costs less than as much again.
SLOW_LATENCY = 2.0
# Of fewer pairs the median is one of their own: then only the two directions of a pair can be compared.
ENOUGH_PAIRS = 3
# A node or a rank is slow when its links to so many others are; else it may be the one link.
ENOUGH_PARTNERS = 2

ADVICE = {
    "node": "Look at that node's network interface: the speed it came up at, errors, cable and switch port; or leave "
    "the node out.",
    "rank": "Look at that rank's device: width and speed of its PCIe or NVLink, and on which socket it is (Machine).",
    "pair": "Look at what lies between the two (cable, switch, PCIe, NVLink), and at what else uses it.",
}

Way = Mapping[Any, Any]


def findings(seen: SessionData) -> Iterator[Finding]:
    """Those of a session of trainings."""
    yield from check_links(link_table(seen.results, seen.session))


def check_links(links: pd.DataFrame) -> Iterator[Finding]:
    """All warnings about links, of what `links.link_table` gives."""
    unknown = links[links["bytes_per_s"].isna() | links["latency_s"].isna()]
    if len(unknown):
        reasons = words.listed(dict.fromkeys(map(str, unknown["reason"].dropna())), most=2)
        yield Finding(
            "links_unknown",
            f"{len(unknown)} of {words.count(len(links), 'direction')} between ranks could not be measured: {reasons}.",
            "Resolve the reason, then measure again with --links (and --resume where launches are left).",
        )
    known = links.drop(unknown.index)
    # Between processes of one host there is no link: what a message takes there, and how fast it is copied, is the
    # scheduler's doing. Four ranks on two busy cores differed by five times.
    known = known[(known["tier"] == ACROSS) | (known["from_device"] != "cpu")]
    for tier in SAID:
        own = known[known["tier"] == tier]
        for end in ("node",) if tier == ACROSS else ("node", "rank"):
            ends = sorted({int(number) for side in ("from", "to") for number in own[f"{side}_{end}"]})
            slow = {number: said for number in ends if (said := _slow_end(own, end, number))}
            for said in slow.values():
                yield Finding(f"slow_{end}_links", f"{said}.", ADVICE[end])
            own = own[~(own[f"from_{end}"].isin(slow) | own[f"to_{end}"].isin(slow))]
        for said in _slow_pairs(own, SAID[tier]):
            yield Finding("slow_link", f"{said}.", ADVICE["pair"])


def _slow_end(own: pd.DataFrame, end: str, number: int) -> str:
    """What is slow about all links of a node or a rank, against those that are not its own; empty where nothing is."""
    sent, received = own[own[f"from_{end}"] == number], own[own[f"to_{end}"] == number]
    both = own.loc[sent.index.union(received.index)]
    others = own.drop(both.index)
    if min(len(sent), len(received)) < ENOUGH_PARTNERS or others.empty:
        return ""
    where = SAID[str(own["tier"].iloc[0])]
    typical, usual = others["bytes_per_s"].median(), others["latency_s"].median()
    each = {"All links of {}": both, "All that {} sends": sent, "All that {} receives": received}
    inside = end == "node" and where != SAID[ACROSS]
    for what, ways in each.items():
        if (ways["bytes_per_s"] < SLOW_BANDWIDTH * typical).all():
            subject = f"All links inside node {number}" if inside else what.format(f"{end} {number}")
            carried = gigabytes(ways["bytes_per_s"].median())
            return f"{subject}: median {carried}; other links {where}: {gigabytes(typical)}"
    if (both["latency_s"] > SLOW_LATENCY * usual).all():
        subject = f"All links {'inside' if inside else 'of'} {end} {number}"
        took = microseconds(both["latency_s"].median())
        return f"{subject}: a message takes {took} (median); other links {where}: {microseconds(usual)}"
    return ""


def _slow_pairs(own: pd.DataFrame, where: str) -> Iterator[str]:
    ranks = own[["from_rank", "to_rank"]]
    pairs = [pair for _, pair in own.groupby([ranks.min(axis="columns"), ranks.max(axis="columns")])]
    typical, usual = own["bytes_per_s"].median(), own["latency_s"].median()
    for pair in pairs:
        ways = pair.sort_values("bytes_per_s").to_dict("records")
        low, high = ways[0]["bytes_per_s"], ways[-1]["bytes_per_s"]
        if len(pairs) < ENOUGH_PAIRS:
            if low < SLOW_BANDWIDTH * high:
                yield f"{_one_way(ways[0])}: {gigabytes(low)}, and back {gigabytes(high)}"
        elif high < SLOW_BANDWIDTH * typical:
            carried = " and ".join(dict.fromkeys((gigabytes(low), gigabytes(high))))
            yield f"{_between(ways[0])}: {carried}; the median {where} is {gigabytes(typical)}"
        elif low < SLOW_BANDWIDTH * typical:
            yield (
                f"{_one_way(ways[0])}: {gigabytes(low)}, and back {gigabytes(high)}; the median {where} is "
                f"{gigabytes(typical)}"
            )
        elif (pair["latency_s"] > SLOW_LATENCY * usual).all():
            took = microseconds(pair["latency_s"].median())
            yield f"{_between(ways[0])}: a message takes {took}; the median {where} is {microseconds(usual)}"


def _ends(way: Way) -> tuple[int, int, str]:
    end = "node" if way["tier"] == ACROSS else "rank"
    return int(way[f"from_{end}"]), int(way[f"to_{end}"]), end


def _one_way(way: Way) -> str:
    sender, receiver, end = _ends(way)
    return f"From {end} {sender} to {end} {receiver}"


def _between(way: Way) -> str:
    *ends, end = _ends(way)
    return f"Between {end} {min(ends)} and {end} {max(ends)}"
