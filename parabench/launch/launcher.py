"""launch(case) -> Launch: one fresh group of processes, and the whole truth about how it ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parabench.cluster.coordinator import Coordinator
from parabench.launch.clocks import align, facts_of
from parabench.launch.node import Course, NodeResult, run_on_node
from parabench.launch.outcome import diagnose
from parabench.launch.rank_env import RankEnv
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Counts, Protocol
from parabench.probes import environment
from parabench.probes.replicas import replicas_apart
from parabench.probes.step_clock import MARKS, read_marks
from parabench.store.record import Launch, utc_now
from parabench.strategies import entry_of
from parabench.workloads.training import Job, run
from parabench.workloads.training_samples import collectives, phase_windows, phases_of, samples, spans, told


def launch(
    case: Case, protocol: Protocol, *, deadline_s: float, traces: Path | None = None, crew: Coordinator | None = None
) -> Launch:
    """Run `case` once: warm-up, then measured steps. Never raises for what happens inside the ranks.

    `traces` is the folder for the traces that the protocol asks for; the facts name the files. `crew` are the nodes
    that a case may need besides this one. Raises Interrupted when the driver is asked to stop.
    """
    course = training_course(case, protocol, traces)
    return trained(course, protocol, *observe(course, deadline_s, LaunchSpec.of(case, protocol, deadline_s), crew))


def trained(course: Course, protocol: Protocol, seen: Launch, parts: list[NodeResult]) -> Launch:
    """The launch of a training with its samples: what `observe` or `observed` tells, and what ranks handed over."""
    results = [result for part in parts for result in part.results]
    marks = [each for part in parts for each in part.marks]
    seen.facts |= replicas_apart(results) | told(results)
    counts = protocol.least
    if protocol.by_time:
        counts = agreed(parts)
        seen.facts["counts"] = asdict(counts)
    phases = phases_of(protocol, counts)
    seen.facts["phases"] = phase_windows(marks, phases)
    for result, steps in zip(results, marks, strict=True):
        rank = result["rank"]
        seen.samples += samples(rank, steps, result, phases)
        seen.spans += spans(rank, steps, result, phases)
        seen.collectives += collectives(rank, result, phases)
    return seen


def agreed(parts: Sequence[NodeResult]) -> Counts:
    """How many steps the ranks of a launch that goes by time agreed to take; before they did all were warm-up."""
    told_so = next((part.counts for part in parts if part.counts), None)
    if told_so is None:
        return Counts(warmup=max(len(each) for part in parts for each in part.marks), measured=0)
    warmup, measured = told_so
    return Counts(warmup=warmup, measured=measured)


def training_course(case: Case, protocol: Protocol, traces: Path | None = None) -> Course:
    """What a launch of a training does."""
    steps = None if protocol.by_time else protocol.all_steps
    stem = None
    if traces is not None and protocol.traced:
        traces.mkdir(exist_ok=True)
        stem = traces / f"{case.id}-{re.sub('[^0-9TZ]', '', utc_now())}"

    def where(moments: int) -> str:
        step, part = divmod(moments, MARKS)
        return f"to step {step}, part {part}"

    def job(venue: RankEnv) -> Job:
        venue.environment.update(environment(protocol, venue.folder))
        return Job(case, protocol, venue, stem)

    return Course(
        case=case,
        size=1 if entry_of(case.strategy).one_process else case.world_size,
        entry=run,
        job=job,
        marks=lambda folder, rank: read_marks(folder / f"marks{rank}.f64", steps),
        where=where,
    )


def observe(
    course: Course, deadline_s: float, order: LaunchSpec, crew: Coordinator | None = None
) -> tuple[Launch, list[NodeResult]]:
    """Run a fresh group of ranks, on several nodes where the case says so, and tell as `observed`."""
    assert crew or course.case.nodes == 1, "no crew for a case on several nodes"

    def fresh() -> tuple[list[NodeResult], str | None]:
        with ExitStack() as stack:
            team = stack.enter_context(crew.launching(order)) if crew else None
            parts, lost = [run_on_node(course, deadline_s, team)], None
            if crew and team:
                others, lost = crew.gather(order, team, deadline_s)
                parts += others
        return parts, lost

    return observed(course, deadline_s, fresh)


def observed(
    course: Course, deadline_s: float, ranks: Callable[[], tuple[list[NodeResult], str | None]]
) -> tuple[Launch, list[NodeResult]]:
    """Let `ranks` run: the launch with what was read around it, but without its samples, and what each node saw, in the
    order of their ranks and on this node's clock. `ranks` returns what each node saw, and of a lost one how.

    Its facts tell at which reading of the clock that all processes share its readings' `t_s` is 0.
    """
    started = utc_now()
    parts, lost = ranks()
    # A wait for a node that was gone is no part of the launch; and readings count from here.
    begin = parts[0].began_s
    status, failure = diagnose(parts, course.where, deadline_s, lost)
    parts = align(course, parts)
    results = [result for part in parts for result in part.results]
    facts: dict[str, Any] = next((r["facts"] for r in results if "facts" in r), {})
    return Launch(
        case=course.case,
        status=status,
        started_utc=started,
        wall_s=time.perf_counter() - begin,
        failure=failure,
        device_samples=[sample for part in parts for sample in part.device_samples],
        host_samples=[sample for part in parts for sample in part.host_samples],
        facts=facts | {"clock": {"began_s": begin}} | facts_of(parts),
    ), parts
