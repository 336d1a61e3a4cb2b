"""launch(spec) -> Launch: one fresh group of processes, and the whole truth about how it ended."""

from __future__ import annotations

import time

from parabench.launch.clocks import align, facts_of
from parabench.launch.node import run_on_node
from parabench.launch.outcome import diagnose
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import Nodes, Workload, workload_of
from parabench.store.record import Launch, utc_now


def launch(spec: LaunchSpec, *, workload: Workload | None = None, nodes: Nodes | None = None) -> Launch:
    """Run `spec` once: one process a rank, here and on the other `nodes` where it says so. Never raises for what
    happens inside the ranks.

    The facts tell at which reading of the clock that all processes share the `t_s` of readings is 0, and name the files
    of traces. Raises Interrupted when the driver is asked to stop, NodeGone when a node does not come.
    """
    workload = workload or workload_of(spec.kind)
    assert nodes or spec.nodes == 1, "who runs a launch on several nodes?"
    started = utc_now()
    results = nodes.run(spec, workload) if nodes else [run_on_node(spec, workload)]
    # A wait for a node that was gone is no part of the launch; and readings count from here.
    begin = results[0].began_s
    layout = workload.marks(spec)
    status, failure = diagnose(results, layout.position, spec.deadline_s)
    results = align(results, layout)
    facts = next((report.facts for result in results for report in result.reports if report.facts), {})
    seen = Launch(
        case=spec.case,
        status=status,
        started_utc=started,
        wall_s=time.perf_counter() - begin,
        failure=failure,
        device_samples=[sample for result in results for sample in result.device_samples],
        host_samples=[sample for result in results for sample in result.host_samples],
        facts=facts | {"clock": {"began_s": begin}} | facts_of(results),
    )
    workload.record(seen, spec, results)
    return seen
