"""Warnings about links: a slow link, and a node or a rank with only slow links."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from parabench.analysis import format
from parabench.analysis.links import ACROSS, SAID, gigabytes, microseconds
from parabench.store.record import Finding

# A link at a lower speed (half the lanes, one port instead of two, an older generation) carries half or less. Equal
# links on a busy machine carried 0.8 of their median or more.
SLOW_BANDWIDTH = 0.7
# An additional switch costs less.
SLOW_LATENCY = 2.0
# With fewer pairs, the median is a pair, so only the two directions of a pair can be compared.
ENOUGH_PAIRS = 3
# The number of slow links that makes a node or rank slow. With one slow link, it may be the link.
ENOUGH_PARTNERS = 2

ADVICE = {
    "node": "Check that node's network interface (speed, errors, cable, switch port), or leave the node out.",
    "rank": "Check that rank's device: width and speed of its PCIe or NVLink, and its socket (Machine).",
    "pair": "Check the connection between the two (cable, switch, PCIe, NVLink), and other traffic on it.",
}


def check_links(links: pd.DataFrame) -> Iterator[Finding]:
    """Yield all warnings about links, from `links.link_table`. Links of a slow node or rank get no separate warning."""
    unknown = links[links["bytes_per_s"].isna() | links["latency_s"].isna()]
    if len(unknown):
        reasons = format.listed(unknown["reason"].dropna().unique(), most=2)
        yield Finding(
            "links_unknown",
            f"{len(unknown)} of {format.count(len(links), 'direction')} between ranks could not be measured: "
            f"{reasons}.",
            "Resolve the reason, then measure again with --links (and --resume if launches are left).",
        )
    # CPU ranks of one host share memory, and the scheduler decides the time of a message. Four ranks on two busy cores
    # differed by five times.
    known = links.drop(unknown.index)
    known = known[(known["tier"] == ACROSS) | (known["from_device"] != "cpu")]
    for tier, where in SAID.items():
        of_tier = known[known["tier"] == tier]
        for end in ("node",) if tier == ACROSS else ("node", "rank"):
            ends = of_tier[[f"from_{end}", f"to_{end}"]]
            slow = {
                int(one): text for one in sorted(set(ends.stack())) if (text := _slow_end(of_tier, end, one, where))
            }
            for text in slow.values():
                yield Finding(f"slow_{end}_links", text, ADVICE[end])
            of_tier = of_tier[~ends.isin(list(slow)).any(axis="columns")]
        for text in _slow_pairs(of_tier, "node" if tier == ACROSS else "rank", where):
            yield Finding("slow_link", text, ADVICE["pair"])


def _slow_end(links_of_tier: pd.DataFrame, end: str, number: int, where: str) -> str:
    """Return a sentence if all links of a node or a rank are slower than all other links; otherwise empty."""
    sends, receives = links_of_tier[f"from_{end}"] == number, links_of_tier[f"to_{end}"] == number
    own, others = links_of_tier[sends | receives], links_of_tier[~(sends | receives)]
    if min(sends.sum(), receives.sum()) < ENOUGH_PARTNERS or others.empty:
        return ""
    inside = end == "node" and where != SAID[ACROSS]
    every = f"All links {'inside' if inside else 'of'} {end} {number}"
    (rate, latency), (typical, usual) = (rows[["bytes_per_s", "latency_s"]].median() for rows in (own, others))
    if (own["bytes_per_s"] < SLOW_BANDWIDTH * typical).all():
        return f"{every}: median {gigabytes(rate)}; other links {where}: {gigabytes(typical)}."
    if (own["latency_s"] > SLOW_LATENCY * usual).all():
        took = microseconds(latency)
        return f"{every}: a message takes {took} (median); other links {where}: {microseconds(usual)}."
    return ""


def _slow_pairs(links: pd.DataFrame, end: str, where: str) -> Iterator[str]:
    """Yield a sentence for each pair that is slower than the median; with few pairs, directions are compared."""
    ranks = links[["from_rank", "to_rank"]]
    pairs = links.groupby([ranks.min(axis="columns"), ranks.max(axis="columns")])
    typical, usual = links["bytes_per_s"].median(), links["latency_s"].median()
    few = len(pairs) < ENOUGH_PAIRS
    for _, pair in pairs:
        slow = pair.sort_values("bytes_per_s").iloc[0]
        low, high, ends = slow["bytes_per_s"], pair["bytes_per_s"].max(), (slow[f"from_{end}"], slow[f"to_{end}"])
        between = f"Between {end} {min(ends)} and {end} {max(ends)}"
        median = "" if few else f"; the median {where} is {gigabytes(typical)}"
        if not few and high < SLOW_BANDWIDTH * typical:
            yield f"{between}: {' and '.join(dict.fromkeys((gigabytes(low), gigabytes(high))))}{median}."
        elif low < SLOW_BANDWIDTH * (high if few else typical):
            yield f"From {end} {ends[0]} to {end} {ends[1]}: {gigabytes(low)}, and back {gigabytes(high)}{median}."
        elif not few and (pair["latency_s"] > SLOW_LATENCY * usual).all():
            took = microseconds(pair["latency_s"].median())
            yield f"{between}: a message takes {took}; the median {where} is {microseconds(usual)}."
