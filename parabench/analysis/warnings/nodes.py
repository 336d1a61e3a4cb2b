"""Warnings about the nodes of a session: one that is another machine than the rest, one whose ranks compute slower."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from parabench.analysis.environment.nodes import kinds, node_of_rank, nodes_compared
from parabench.analysis.session import Session, SessionData
from parabench.analysis.text import format
from parabench.machine import accelerator
from parabench.store.record import Finding
from parabench.strategies import STRATEGIES, Rule

# One rank's forward pass communicates nothing under these strategies, so ranks differ only by their hardware
# and luck. Where no rank waits for another (stale gradients), or none has to (no exchange), a slow one costs the others
# nothing.
LOCAL_FORWARD = tuple(
    name for name, entry in STRATEGIES.items() if entry.local_forward and entry.rule is Rule.REFERENCE
)
# By how much a node's ranks compute longer than those of the others. Twice what medians of equal launches differ by on
# shared CPUs (9.7 %); clocks of dedicated GPUs stay within 1-2 %, and 5 % is what a straggler has to cost, too.
SLOW_NODE = {"cpu": 1.20, accelerator.TYPE: 1.05}
# In so many launches at least, and in that share of all that span nodes: of two equal nodes one is slower by chance in
# half of them, but not by as much.
ENOUGH_LAUNCHES = 3
MOST_LAUNCHES = 0.75


def nodes_differ(session: Session) -> Iterator[Finding]:
    """The finding that a node is another machine than node 0; needs no launch."""
    if len(kinds(session.environment)) > 1:
        yield Finding(
            code="nodes_differ",
            message=f"The nodes are not alike: {nodes_compared(session.environment)}.",
            advice="Ranks wait for the slowest: read answers as those of this mixture, or make the nodes alike.",
        )


def node_forward(seen: SessionData) -> pd.DataFrame:
    """One row per launch that spans nodes and whose forward pass communicates nothing: `launch_id, device, node` (the
    slowest in computing) and `ratio`, its ranks' median forward pass by the median of the other nodes'."""
    good = seen.counted[seen.counted["strategy"].isin(LOCAL_FORWARD)]
    node_of_ranks = {at: node_of_rank(seen.facts[at]) for at in good["launch_id"]}
    spanning = {at: node_of for at, node_of in node_of_ranks.items() if len(set(node_of.values())) > 1}
    medians = seen.results.medians
    rows = medians[(medians["metric"] == "forward_s") & medians["launch_id"].isin(spanning.keys())]
    found = []
    by_launch = dict(iter(rows.groupby("launch_id")))
    for launch_id, node_of in spanning.items():
        if launch_id not in by_launch:
            continue
        by_rank = by_launch[launch_id].set_index("rank")["value"]
        # What a rank did not tell is unknown, and so is which node is the slowest.
        if by_rank.reindex(list(node_of)).isna().any():
            continue
        by_node = by_rank.groupby(by_rank.index.map(node_of)).median()
        *others, slowest = by_node.sort_values(kind="stable")
        found.append((launch_id, by_node.idxmax(), slowest / float(np.median(others))))
    table = pd.DataFrame(found, columns=["launch_id", "node", "ratio"])
    return table.merge(good[["launch_id", "device"]], on="launch_id")


def findings(seen: SessionData) -> Iterator[Finding]:
    """Those of a session of trainings."""
    yield from nodes_differ(seen.session)
    table = node_forward(seen)
    for device, own in table.groupby("device"):
        slow = own[own["ratio"] > SLOW_NODE[str(device)]]
        for node, launches in slow.groupby("node"):
            if len(launches) < max(ENOUGH_LAUNCHES, MOST_LAUNCHES * len(own)):
                continue
            yield Finding(
                code="slow_node",
                message=f"Node {node}: in {len(launches)} of {format.count(len(own), 'launch')} that span nodes its "
                f"ranks computed their forward pass {format.percent(launches['ratio'].median() - 1)} slower than those "
                f"of the other nodes (the median; more than {format.percent(SLOW_NODE[str(device)] - 1)} in each); all "
                "nodes wait for it.",
                advice="Look at that node's clocks, temperature and power limits, at what else runs there, and at how "
                "it differs from the others (Machine).",
            )
