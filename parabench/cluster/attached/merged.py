"""What single ranks saw, as what nodes saw: judged and kept like a launch of fresh processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import NodeResult


def group_by_node(parts: Mapping[int, NodeResult], ranks_per_node: int) -> list[NodeResult]:
    """Parts of one rank each, {rank: part} of all ranks, brought together node by node."""
    ranks = sorted(parts)
    return [
        _node([parts[rank] for rank in ranks[at : at + ranks_per_node]]) for at in range(0, len(ranks), ranks_per_node)
    ]


def _node(parts: list[NodeResult]) -> NodeResult:
    ok = all(part.outcome.ok for part in parts)
    gone = next((part.outcome.rank for part in parts if part.outcome.rank is not None), None)
    # Moments count from when the node's first rank began; readings of another rank from when that one did.
    first = next((part for part in parts if part.outcome.rank is None), parts[0])
    return replace(
        parts[0],
        began_s=first.began_s,
        outcome=ProcessOutcome(ok=ok, hung=any(part.outcome.hung for part in parts), rank=gone),
        reports=[report for part in parts for report in part.reports],
        marks=[each for part in parts for each in part.marks],
        tails=[] if ok else [tail for part in parts for tail in part.tails or [""]],
        stacked=[rank for part in parts for rank in part.stacked],
        answers=[answer for part in parts for answer in part.answers or [{}]],
        device_samples=[
            sample._replace(t_s=sample.t_s + part.began_s - first.began_s)
            for part in parts
            for sample in part.device_samples
        ],
        sampler=_sampler([part.sampler for part in parts if part.sampler]),
        counts=next((part.counts for part in parts if part.counts), None),
    )


def _sampler(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What reading cost in all, where several ranks of a host look at devices; what any of them could not read."""
    if not each:
        return {}
    costs = [one["cpu_s"] for one in each]
    return {
        **each[0],
        "cpu_s": None if None in costs else sum(costs),
        "unread": {name: why for one in reversed(each) for name, why in one["unread"].items()},
    }
