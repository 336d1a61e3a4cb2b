"""Run one launch in a new group of processes, and record its measurements and the cause of a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from parabench.launch.node import run_on_node
from parabench.launch.outcome import diagnose
from parabench.launch.results import MarkLayout, NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import Workload, workload_of
from parabench.store.record import Launch, utc_now

# Runs the ranks of a launch, and returns the result of each node, node 0 first.
Run = Callable[[LaunchSpec, Workload], list[NodeResult]]


def run_here(spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
    """Run the ranks in fresh processes of this node."""
    assert spec.nodes == 1, "a launch on several nodes needs a coordinator"
    return [run_on_node(spec, workload)]


def launch(spec: LaunchSpec, *, workload: Workload | None = None, run: Run = run_here) -> Launch:
    """Run `spec` once, with one process for each rank, as `run` starts them. Faults inside the ranks raise nothing.

    The fact `clock` has the reading of the shared clock from which the `t_s` of readings count.

    Raises:
        Interrupted: If the driver is asked to stop.
        NodeGone: If a node does not come.
    """
    workload = workload or workload_of(spec.kind)
    started = utc_now()
    results = run(spec, workload)
    # The wait for a node that was gone is not part of the launch; readings count from here.
    begin = results[0].began_s
    layout = workload.marks(spec)
    status, failure = diagnose(results, layout.position, spec.deadline_s)
    results = align(results, layout)
    seen = Launch(
        case=spec.cases[0],
        status=status,
        started_utc=started,
        wall_s=time.perf_counter() - begin,
        failure=failure,
        device_samples=[each._replace(node=result.node) for result in results for each in result.device_samples],
        host_samples=[each._replace(node=result.node) for result in results for each in result.host_samples],
        facts={"clock": {"began_s": begin}} | facts_of(results),
    )
    workload.record(seen, spec, results)
    return seen


def align(results: Sequence[NodeResult], layout: MarkLayout) -> list[NodeResult]:
    """Return the results with all times on node 0's clock. A node is not shifted if its first rank failed before it
    compared the clocks."""
    return [_shifted(each, layout, results[0].began_s) for each in results]


def _clock_of(result: NodeResult) -> dict[str, float] | None:
    """Return {"offset_s", "error_s"} of a node's clock; None if it is unknown."""
    return next((report.clock for report in result.reports if report.clock), None)


def facts_of(results: Sequence[NodeResult]) -> dict[str, Any]:
    """Return the facts of the nodes that are not lost: their ranks, their clocks, and the cost of the sampler."""
    nodes = [
        {
            "node": each.node,
            "host": each.host,
            "first_rank": each.first_rank,
            "ranks": len(each.reports),
            "clock": _clock_of(each),
            "sampler": each.sampler,
        }
        for each in results
        if each.lost is None
    ]
    return {"sampler": results[0].sampler} | ({"nodes": nodes} if len(nodes) > 1 else {})


def _shifted(result: NodeResult, layout: MarkLayout, began_s: float) -> NodeResult:
    clock = _clock_of(result)
    if clock is None or result.node == 0:
        return result
    by = clock["offset_s"]
    marks = [each.copy() for each in result.marks]
    for each in marks:
        each[:, : layout.moments] += by
    # Readings count from the start of their node; now they count from the start of node 0.
    later = result.began_s + by - began_s
    return replace(
        result,
        marks=marks,
        reports=[report.later(by) for report in result.reports],
        device_samples=[sample._replace(t_s=sample.t_s + later) for sample in result.device_samples],
        host_samples=[sample._replace(t_s=sample.t_s + later) for sample in result.host_samples],
    )
