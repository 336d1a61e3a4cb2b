"""Doubts about links: one that is slower than its like, and a node or a rank all of whose links are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis import words
from parabench.analysis.evidence import Evidence
from parabench.analysis.links import ACROSS, SAID, gigabytes, link_table, microseconds
from parabench.record import Finding

# A link that came up at a lower speed (half the lanes, one of two ports, a generation back) carries half or less. Links
# of one kind on a busy machine of two cores carried 0.8 of their median or more.
SLOW_BANDWIDTH = 0.7
# A switch more on the way costs less than as much again.
SLOW_LATENCY = 2.0
# Of fewer pairs the median is one of their own. Then only the two directions of a pair can be compared.
ENOUGH_PAIRS = 3
# A node or a rank is slow when its links to so many others are; else it may be the one link.
ENOUGH_PARTNERS = 2

ADVICE = {
    "node": "Look at that node's network interface: the speed it came up at, errors, cable and switch port; or leave the "
    "node out.",
    "rank": "Look at that rank's device: the width and speed of its PCIe or NVLink, and which socket it hangs on "
    "(Machine).",
    "pair": "Look at what lies between the two: cable, switch, PCIe or NVLink, and what else uses it.",
}


def findings(seen: Evidence) -> Iterator[Finding]:
    """Those of a session of trainings."""
    yield from check_links(link_table(seen.results, seen.session))


def check_links(links: pd.DataFrame) -> Iterator[Finding]:
    """All doubts about links, of what `links.link_table` gives."""
    unknown = links[links["bytes_per_s"].isna() | links["latency_s"].isna()]
    if len(unknown):
        reasons = words.listed(dict.fromkeys(map(str, unknown["reason"].dropna())), most=2)
        yield Finding(
            "links_unknown",
            f"{len(unknown)} of {words.count(len(links), 'direction')} between ranks could not be measured: {reasons}.",
            "Read the reason; measure again with --links in a new session.",
        )
    known = links.drop(unknown.index)
    for tier in SAID:
        own = known[known["tier"] == tier]
        for end in ("node",) if tier == ACROSS else ("node", "rank"):
            slow = {number: said for number in _ends(own, end) if (said := _slow_end(own, end, number))}
            for number, said in slow.items():
                code = f"slow_{end}_links"
                yield Finding(code, f"{said}.", ADVICE[end])
            own = own[~(own[f"from_{end}"].isin(slow) | own[f"to_{end}"].isin(slow))]
        yield from _slow_links(own, tier)


def _ends(own: pd.DataFrame, end: str) -> list[int]:
    return sorted({int(number) for side in ("from", "to") for number in own[f"{side}_{end}"]})


def _slow_end(own: pd.DataFrame, end: str, number: int) -> str:
    """What is slow about all links of a node or a rank, against those that are not its own; empty where nothing is."""
    sent, received = own[own[f"from_{end}"] == number], own[own[f"to_{end}"] == number]
    others = own.drop(sent.index.union(received.index))
    if min(len(sent), len(received)) < ENOUGH_PARTNERS or others.empty:
        return ""
    typical, tier = others["bytes_per_s"].median(), str(own["tier"].iloc[0])
    slow = [bool((way["bytes_per_s"] < SLOW_BANDWIDTH * typical).all()) for way in (sent, received)]
    inside = end == "node" and tier != ACROSS
    if any(slow):
        ways = sent if not slow[1] else received if not slow[0] else pd.concat([sent, received])
        what = {(True, True): f"All links of {end} {number}", (True, False): f"All that {end} {number} sends"}
        subject = (
            "All links inside node " + str(number)
            if inside
            else what.get((slow[0], slow[1]), f"All that {end} {number} receives")
        )
        carried = gigabytes(ways["bytes_per_s"].median())
        return f"{subject}: {carried}, the median, where other links {SAID[tier]} carry {gigabytes(typical)}"
    both, usual = pd.concat([sent, received])["latency_s"], others["latency_s"].median()
    if _latency_counts(own) and (both > SLOW_LATENCY * usual).all():
        subject = f"All links {'inside' if inside else 'of'} {end} {number}"
        return (
            f"{subject} take {microseconds(both.median())}, where other links {SAID[tier]} take {microseconds(usual)}"
        )
    return ""


def _latency_counts(own: pd.DataFrame) -> bool:
    """Between processes of one host there is no link: what a message takes there is the scheduler's."""
    return bool((own["tier"] == ACROSS).all() or (own["from_device"] != "cpu").all())


def _slow_links(own: pd.DataFrame, tier: str) -> Iterator[Finding]:
    pairs = own.assign(
        a=own[["from_rank", "to_rank"]].min(axis="columns"), b=own[["from_rank", "to_rank"]].max(axis="columns")
    )
    groups = list(pairs.groupby(["a", "b"]))
    typical, usual = own["bytes_per_s"].median(), own["latency_s"].median()
    for _, pair in groups:
        ways = pair.sort_values("bytes_per_s").to_dict("records")
        slowest, fastest = ways[0], ways[-1]
        if len(groups) < ENOUGH_PAIRS:
            if slowest["bytes_per_s"] < SLOW_BANDWIDTH * fastest["bytes_per_s"]:
                yield _slow(
                    f"{_way(slowest)}: {gigabytes(slowest['bytes_per_s'])}, and back {gigabytes(fastest['bytes_per_s'])}"
                )
            continue
        median = f"the median {SAID[tier]} is {gigabytes(typical)}"
        if fastest["bytes_per_s"] < SLOW_BANDWIDTH * typical:
            carried = [gigabytes(way["bytes_per_s"]) for way in ways]
            yield _slow(f"{_between(slowest)}: {words.joined(dict.fromkeys(carried))}; {median}")
        elif slowest["bytes_per_s"] < SLOW_BANDWIDTH * typical:
            back = "" if len(ways) < 2 else f", and back {gigabytes(fastest['bytes_per_s'])}"
            yield _slow(f"{_way(slowest)}: {gigabytes(slowest['bytes_per_s'])}{back}; {median}")
        elif _latency_counts(own) and (pair["latency_s"] > SLOW_LATENCY * usual).all():
            took = microseconds(pair["latency_s"].median())
            yield _slow(
                f"{_between(slowest)}: a message takes {took}; the median {SAID[tier]} is {microseconds(usual)}"
            )


def _slow(said: str) -> Finding:
    return Finding("slow_link", f"{said}.", ADVICE["pair"])


def _names(way: Mapping[Any, Any]) -> tuple[str, str]:
    end = "node" if way["tier"] == ACROSS else "rank"
    return f"{end} {way[f'from_{end}']}", f"{end} {way[f'to_{end}']}"


def _way(way: Mapping[Any, Any]) -> str:
    return "From {} to {}".format(*_names(way))


def _between(way: Mapping[Any, Any]) -> str:
    return "Between {} and {}".format(*sorted(_names(way)))
