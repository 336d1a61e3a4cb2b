"""What several nodes saw of one launch, brought together: on node 0's clock, and which ranks were where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parabench.launch.node import Course, NodeResult
from parabench.store.record import SeenCall


def align(course: Course, parts: Sequence[NodeResult]) -> list[NodeResult]:
    """The parts with every moment on node 0's clock, as far as the first rank of each node could tell how the clocks
    differ; where it could not (it did not come so far), nothing of the node is shifted."""
    began_s = parts[0].began_s
    return [part if part.node == 0 else _shifted(course, part, began_s) for part in parts]


def clock_of(part: NodeResult) -> dict[str, float] | None:
    """{"offset_s", "error_s"} of a node's clock; None where it is not known."""
    told: dict[str, float] | None = next((r["clock"] for r in part.results if r.get("clock")), None)
    return told


def facts_of(parts: Sequence[NodeResult]) -> dict[str, Any]:
    """Which ranks were where, and what it cost to look, for the record of a launch."""
    if len(parts) == 1:
        return {"sampler": parts[0].sampler}
    nodes = [
        {
            "node": part.node,
            "host": part.host,
            "first_rank": part.first_rank,
            "ranks": len(part.results),
            "clock": clock_of(part),
            "sampler": part.sampler,
        }
        for part in parts
    ]
    return {"sampler": parts[0].sampler, "nodes": nodes}


def _shifted(course: Course, part: NodeResult, began_s: float) -> NodeResult:
    clock = clock_of(part)
    if clock is None:
        return part
    by = clock["offset_s"]
    marks = [each.copy() for each in part.marks]
    for each in marks:
        each[:, : course.moments] += by
    # Readings count from when their node began: they are to count from when node 0 did.
    later = part.began_s + by - began_s
    return replace(
        part,
        marks=marks,
        results=[_result(result, by) for result in part.results],
        device_samples=[sample._replace(t_s=sample.t_s + later) for sample in part.device_samples],
        host_samples=[sample._replace(t_s=sample.t_s + later) for sample in part.host_samples],
    )


def _result(result: dict[str, Any], by: float) -> dict[str, Any]:
    shifted = dict(result)
    if "waits" in result:
        shifted["waits"] = [[step, begin + by, end + by] for step, begin, end in result["waits"]]
    if "collectives" in result:
        shifted["collectives"] = [SeenCall(*call).later(by) for call in result["collectives"]]
    return shifted
