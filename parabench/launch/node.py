"""The part of one node in a launch: run its ranks, and collect their results. On one node it is the whole launch."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from parabench.collectives.nccl import nccl_environment
from parabench.files import launch_folder
from parabench.launch.hang import read_answer
from parabench.launch.processes import log_tail, run_processes
from parabench.launch.rank import main, report_path
from parabench.launch.rendezvous import LaunchContext
from parabench.launch.results import NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload
from parabench.machine import accelerator
from parabench.machine.nvml import keep_nvml, used_devices
from parabench.plan.nccl_pins import launch_order
from parabench.probes.devices import sources_of
from parabench.probes.sampler import RankPids, Sampler
from parabench.probes.step_clock import read_counts
from parabench.store.record import DeviceSample, HostSample

# The line of faulthandler above the stack of each thread.
STACK_HEAD = "(most recent call first)"

# The timeout of the group comes after the deadline, whose message is better.
GROUP_GRACE_S = 60.0


def run_on_node(spec: LaunchSpec, workload: Workload, context: LaunchContext | None = None) -> NodeResult:
    """Run this node's ranks of a launch in fresh processes. Raises Interrupted when the driver is asked to stop."""
    began = time.perf_counter()
    context = context or LaunchContext(local_world_size=workload.ranks(spec))
    ranks = range(context.first_rank, context.first_rank + context.local_world_size)
    with ExitStack() as stack:
        folder = stack.enter_context(launch_folder())
        if spec.device == accelerator.TYPE:
            keep_nvml()
        pids = RankPids(folder, ranks)
        # One process may drive several devices.
        driven = max(len(ranks), spec.ranks_per_node)
        devices = partial(used_devices, driven) if spec.device == accelerator.TYPE else None
        # The ranks of the other variant, which are interleaved with these, are children of the same `ab`.
        ours = os.getppid() if spec.pair else os.getpid()
        sources = sources_of(began, pids, devices, ours)
        sampler = stack.enter_context(Sampler(began, sources))
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
        marks = [layout.read(folder, rank) for rank in ranks]
        counts = read_counts(folder, ranks)
        # Logs are named by the rank's number on this node.
        answers = [] if outcome.ok else [read_answer(folder, rank) for rank in ranks]
        tails = [] if outcome.ok else [log_tail(logs, at) for at in range(len(ranks))]
        stacked = [] if outcome.ok else [r for r in ranks if STACK_HEAD in log_tail(logs, r - ranks.start, lines=1000)]
    ids = pids.look()
    left = {rank for rank, pid in ids.items() if pid not in outcome.killed}
    vanished = [each.rank for each in reports if not each.reported and each.rank in left]
    return NodeResult(
        node=context.node_rank,
        host=socket.gethostname(),
        first_rank=ranks.start,
        began_s=began,
        outcome=outcome,
        reports=reports,
        marks=marks,
        tails=tails,
        stacked=stacked,
        vanished=vanished if outcome.aborted_by or outcome.hung else [],
        counts=counts,
        answers=answers,
        device_samples=sampler.samples(DeviceSample),
        host_samples=sampler.samples(HostSample),
        sampler=sampler.facts(),
    )


def _report(folder: Path, rank: int) -> RankReport:
    try:
        return msgspec.convert(json.loads(report_path(folder, rank).read_text()), RankReport, str_keys=True)
    except FileNotFoundError:
        return RankReport(rank=rank, reported=False)
