"""Run one launch in a new group of processes, and record its measurements and the cause of a failure.

Each node runs its ranks (`run_on_node`). With one node, these are all ranks of the launch.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from parabench.collectives import is_backends
from parabench.collectives.nccl import nccl_environment
from parabench.files import launch_folder
from parabench.launch.hang import read_answer
from parabench.launch.outcome import diagnose
from parabench.launch.processes import log_tail, run_processes
from parabench.launch.rank import main, report_path
from parabench.launch.rendezvous import LaunchContext
from parabench.launch.results import MarkLayout, NodeResult, RankReport
from parabench.launch.spec import LaunchSpec, RankEnv, Workload, workload_of
from parabench.machine import accelerator
from parabench.machine.nvml import keep_nvml, used_devices
from parabench.plan.validate import communicators
from parabench.probes.devices import sources_of
from parabench.probes.sampler import RankPids, Sampler
from parabench.probes.step_clock import read_counts
from parabench.store.record import AnyCase, DeviceSample, HostSample, Launch, utc_now

# Runs the ranks of a launch, and returns the result of each node, node 0 first.
Run = Callable[[LaunchSpec, Workload], list[NodeResult]]

LAUNCH_ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"

# The line of faulthandler above the stack of each thread.
STACK_HEAD = "(most recent call first)"

# The timeout of the group comes after the deadline, whose message is better.
GROUP_GRACE_S = 60.0


def launch(spec: LaunchSpec, *, workload: Workload | None = None, run: Run | None = None) -> Launch:
    """Run `spec` once, with one process for each rank. Errors in the ranks are recorded, not raised.

    Args:
        workload: the kind of measurement; by default, from the spec.
        run: starts the ranks on several nodes. By default, they start on this node.

    Raises:
        Interrupted: If the driver is asked to stop.
        NodeGone: If a node does not join in time.
    """
    workload = workload or workload_of(spec.kind)
    started = utc_now()
    assert run or spec.nodes == 1, "a launch on several nodes needs a coordinator"
    results = run(spec, workload) if run else [run_on_node(spec, workload)]
    # The wait for a node that was gone is not part of the launch, so readings count from here.
    begin = results[0].began_s
    layout = workload.marks(spec)
    status, failure = diagnose(results, layout.position, spec.deadline_s)
    results = align(results, layout)
    launched = Launch(
        case=spec.cases[0],
        status=status,
        started_utc=started,
        wall_s=time.perf_counter() - begin,
        failure=failure,
        device_samples=[each._replace(node=result.node) for result in results for each in result.device_samples],
        host_samples=[each._replace(node=result.node) for result in results for each in result.host_samples],
        # The `t_s` of readings count from `began_s` on the shared clock.
        facts={"clock": {"began_s": begin}} | facts_of(results),
    )
    workload.record(launched, spec, results)
    return launched


# -- the ranks of one node ---------------------------------------------------------------------------------------------


def run_on_node(spec: LaunchSpec, workload: Workload, context: LaunchContext | None = None) -> NodeResult:
    """Run this node's ranks of a launch in new processes. Raises Interrupted if the driver is asked to stop."""
    began = time.perf_counter()
    context = context or LaunchContext(local_world_size=workload.ranks(spec))
    ranks = range(context.first_rank, context.first_rank + context.local_world_size)
    on_device = spec.device == accelerator.TYPE
    with ExitStack() as stack:
        folder = stack.enter_context(launch_folder())
        if on_device:
            keep_nvml()
        pids = RankPids(folder, ranks)
        # One process may drive several devices.
        devices = partial(used_devices, max(len(ranks), spec.ranks_per_node)) if on_device else None
        # The ranks of the other variant, which are interleaved with these, are children of the same `ab`.
        ours = os.getppid() if spec.pair else os.getpid()
        sampler = stack.enter_context(Sampler(began, sources_of(began, pids, devices, ours)))
        env = RankEnv(
            folder=folder,
            timeout_s=spec.deadline_s + GROUP_GRACE_S,
            environment={
                **context.environment,
                **nccl_environment(spec.cases[0].algorithm),
                **launch_order(spec.cases),
                **workload.prepare(spec, folder),
            },
            rendezvous=context.rendezvous,
        )
        logs = folder / "logs"
        outcome = run_processes(
            main, (workload, spec, env), size=len(ranks), deadline_s=spec.deadline_s, logs=logs, context=context
        )
        reports = [_report(folder, rank) for rank in ranks]
        layout = workload.marks(spec)
        result = NodeResult(
            node=context.node_rank,
            host=socket.gethostname(),
            first_rank=ranks.start,
            began_s=began,
            outcome=outcome,
            reports=reports,
            marks=[layout.read(folder, rank) for rank in ranks],
            counts=read_counts(folder, ranks),
        )
        if not outcome.ok:
            result.answers = [read_answer(folder, rank) for rank in ranks]
            # Logs are named by the number of the rank on this node.
            result.tails = [log_tail(logs, at) for at in range(len(ranks))]
            result.stacked = [rank for at, rank in enumerate(ranks) if STACK_HEAD in log_tail(logs, at, lines=1000)]
    if outcome.aborted_by or outcome.hung:
        left = {rank for rank, pid in pids.look().items() if pid not in outcome.killed}
        result.vanished = [each.rank for each in reports if not each.reported and each.rank in left]
    result.device_samples, result.host_samples = sampler.samples(DeviceSample), sampler.samples(HostSample)
    result.sampler = sampler.facts()
    return result


def launch_order(cases: Sequence[AnyCase], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variable that prevents deadlocks if parabench's algorithms use several communicators."""
    # Our algorithms launch many short kernels. If ranks start them in different orders, two communicators of one device
    # may wait for each other. With this variable, NCCL 2.26 and later start kernels in the order in which the host
    # enqueued them, which is equal on all ranks. A value that the user has set is kept.
    if LAUNCH_ORDER in environ:
        return {}
    ours = [case for case in cases if case.backend == "nccl" and not is_backends(case.algorithm)]
    several = [among is None or sum(size > 1 for size, _ in among) > 1 for among in map(communicators, ours)]
    return {LAUNCH_ORDER: "1"} if any(several) else {}


def _report(folder: Path, rank: int) -> RankReport:
    try:
        return msgspec.convert(json.loads(report_path(folder, rank).read_text()), RankReport, str_keys=True)
    except FileNotFoundError:
        return RankReport(rank=rank, reported=False)


# -- the results of all nodes ------------------------------------------------------------------------------------------


def align(results: Sequence[NodeResult], layout: MarkLayout) -> list[NodeResult]:
    """Return the results with all times on node 0's clock.

    If the first rank of a node failed before it compared the clocks, its times are not shifted.
    """
    aligned = []
    for result in results:
        clock = _clock_of(result)
        if clock is None or result.node == 0:
            aligned.append(result)
            continue
        by_s = clock["offset_s"]
        marks = [each.copy() for each in result.marks]
        for each in marks:
            each[:, : layout.moments] += by_s
        # Readings count from the start of their node. Now they count from the start of node 0.
        later_s = result.began_s + by_s - results[0].began_s
        aligned.append(
            replace(
                result,
                marks=marks,
                reports=[report.later(by_s) for report in result.reports],
                device_samples=[sample._replace(t_s=sample.t_s + later_s) for sample in result.device_samples],
                host_samples=[sample._replace(t_s=sample.t_s + later_s) for sample in result.host_samples],
            )
        )
    return aligned


def _clock_of(result: NodeResult) -> dict[str, float] | None:
    """Return {"offset_s", "error_s"} of a node's clock; None if it is unknown."""
    return next((report.clock for report in result.reports if report.clock), None)


def facts_of(results: Sequence[NodeResult]) -> dict[str, Any]:
    """Return {"sampler": cost of node 0's sampler, "nodes": ranks, clock and sampler of each node that is not lost}.

    With one node, "nodes" is missing.
    """
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
