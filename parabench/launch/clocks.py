"""What several nodes saw of one launch, brought together: on node 0's clock, and which ranks were where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parabench.launch.results import MarkLayout, NodeResult


def align(results: Sequence[NodeResult], layout: MarkLayout) -> list[NodeResult]:
    """The results with every moment on node 0's clock, as far as the first rank of each node could tell how the clocks
    differ; where it could not (it did not come so far), nothing of the node is shifted."""
    began_s = results[0].began_s
    return [each if each.node == 0 else _shifted(each, layout, began_s) for each in results]


def clock_of(result: NodeResult) -> dict[str, float] | None:
    """{"offset_s", "error_s"} of a node's clock; None where it is not known."""
    return next((report.clock for report in result.reports if report.clock), None)


def facts_of(results: Sequence[NodeResult]) -> dict[str, Any]:
    """Which ranks were where, and what it cost to look, for the record of a launch; of a lost node nothing is known."""
    nodes = [
        {
            "node": each.node,
            "host": each.host,
            "first_rank": each.first_rank,
            "ranks": len(each.reports),
            "clock": clock_of(each),
            "sampler": each.sampler,
        }
        for each in results
        if each.lost is None
    ]
    return {"sampler": results[0].sampler} | ({"nodes": nodes} if len(nodes) > 1 else {})


def _shifted(result: NodeResult, layout: MarkLayout, began_s: float) -> NodeResult:
    clock = clock_of(result)
    if clock is None:
        return result
    by = clock["offset_s"]
    marks = [each.copy() for each in result.marks]
    for each in marks:
        each[:, : layout.moments] += by
    # Readings count from when their node began: they are to count from when node 0 did.
    later = result.began_s + by - began_s
    return replace(
        result,
        marks=marks,
        reports=[report.later(by) for report in result.reports],
        device_samples=[sample._replace(t_s=sample.t_s + later) for sample in result.device_samples],
        host_samples=[sample._replace(t_s=sample.t_s + later) for sample in result.host_samples],
    )
