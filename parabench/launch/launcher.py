"""launch(spec) -> Launch: one fresh group of processes, and the whole truth about how it ended."""

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

# Runs the ranks of a launch: what each node saw, node 0 first; of one that was lost, that it is.
Run = Callable[[LaunchSpec, Workload], list[NodeResult]]


def run_here(spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
    """In fresh processes of this node alone."""
    assert spec.nodes == 1, "who runs a launch on several nodes?"
    return [run_on_node(spec, workload)]


def launch(spec: LaunchSpec, *, workload: Workload | None = None, run: Run = run_here) -> Launch:
    """Run `spec` once: one process a rank, wherever `run` has them. Never raises for what happens inside the ranks.

    The facts tell at which reading of the clock that all processes share the `t_s` of readings is 0, and name the files
    of traces. Raises Interrupted when the driver is asked to stop, NodeGone when a node does not come.
    """
    workload = workload or workload_of(spec.kind)
    started = utc_now()
    results = run(spec, workload)
    # A wait for a node that was gone is no part of the launch; and readings count from here.
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
    """The results with every moment on node 0's clock, as far as the first rank of each node could tell how the clocks
    differ; where it could not (it did not come so far), nothing of the node is shifted."""
    began_s = results[0].began_s
    return [each if each.node == 0 else _shifted(each, layout, began_s) for each in results]


def _clock_of(result: NodeResult) -> dict[str, float] | None:
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
            "clock": _clock_of(each),
            "sampler": each.sampler,
        }
        for each in results
        if each.lost is None
    ]
    return {"sampler": results[0].sampler} | ({"nodes": nodes} if len(nodes) > 1 else {})


def _shifted(result: NodeResult, layout: MarkLayout, began_s: float) -> NodeResult:
    clock = _clock_of(result)
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
