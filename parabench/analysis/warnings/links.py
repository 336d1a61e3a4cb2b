"""Warnings about links: a slow link, and a node or a rank with only slow links."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from parabench.analysis import format
from parabench.analysis.links import ACROSS, SAID, gigabytes, microseconds
from parabench.store.record import Finding

# A link that came up at a lower speed (half the lanes, one of two ports, a generation back) carries half or less. Links
# of one kind on a busy machine of two cores carried 0.8 of their median or more.
SLOW_BANDWIDTH = 0.7
# One more switch on the way costs less than that.
SLOW_LATENCY = 2.0
# With fewer pairs, the median is from one of them, so only the two directions of a pair can be compared.
ENOUGH_PAIRS = 3
# A node or a rank is slow if its links to so many others are; otherwise it may be the one link.
ENOUGH_PARTNERS = 2

ADVICE = {
    "node": "Look at that node's network interface: the speed it came up at, errors, cable and switch port; or leave "
    "the node out.",
    "rank": "Look at that rank's device: width and speed of its PCIe or NVLink, and on which socket it is (Machine).",
    "pair": "Look at what lies between the two (cable, switch, PCIe, NVLink), and at what else uses it.",
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
            "Resolve the reason, then measure again with --links (and --resume where launches are left).",
        )
    # Between CPU ranks of one host there is no link: the scheduler decides how long a message takes, and how fast it is
    # copied. Four ranks on two busy cores differed by five times.
    known = links.drop(unknown.index).query(f"tier == '{ACROSS}' or from_device != 'cpu'")
    for tier, where in SAID.items():
        own = known[known["tier"] == tier]
        for end in ("node",) if tier == ACROSS else ("node", "rank"):
            ends = own[[f"from_{end}", f"to_{end}"]]
            slow = {int(one): text for one in sorted(set(ends.stack())) if (text := _slow_end(own, end, one, where))}
            for text in slow.values():
                yield Finding(f"slow_{end}_links", text, ADVICE[end])
            own = own[~ends.isin(list(slow)).any(axis="columns")]
        for text in _slow_pairs(own, "node" if tier == ACROSS else "rank", where):
            yield Finding("slow_link", text, ADVICE["pair"])


def _slow_end(own: pd.DataFrame, end: str, number: int, where: str) -> str:
    """Return how all links of a node or a rank are slow, compared with all other links; empty if they are not."""
    sends, receives = own[f"from_{end}"] == number, own[f"to_{end}"] == number
    both, others = own[sends | receives], own[~(sends | receives)]
    if min(sends.sum(), receives.sum()) < ENOUGH_PARTNERS or others.empty:
        return ""
    inside = end == "node" and where != SAID[ACROSS]
    every = f"All links {'inside' if inside else 'of'} {end} {number}"
    typical, usual = others["bytes_per_s"].median(), others["latency_s"].median()
    ways = {
        every: both,
        f"All that {end} {number} sends": own[sends],
        f"All that {end} {number} receives": own[receives],
    }
    for links, rows in ways.items():
        if (rows["bytes_per_s"] < SLOW_BANDWIDTH * typical).all():
            carried = gigabytes(rows["bytes_per_s"].median())
            return f"{links}: median {carried}; other links {where}: {gigabytes(typical)}."
    if (both["latency_s"] > SLOW_LATENCY * usual).all():
        took = microseconds(both["latency_s"].median())
        return f"{every}: a message takes {took} (median); other links {where}: {microseconds(usual)}."
    return ""


def _slow_pairs(own: pd.DataFrame, end: str, where: str) -> Iterator[str]:
    """Yield how a pair is slow, compared with the median; with too few pairs, one direction with the other."""
    ranks = own[["from_rank", "to_rank"]]
    pairs = own.groupby([ranks.min(axis="columns"), ranks.max(axis="columns")])
    typical, usual = own["bytes_per_s"].median(), own["latency_s"].median()
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
