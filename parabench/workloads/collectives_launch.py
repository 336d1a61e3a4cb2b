"""launch_collective(case) -> Launch: one fresh group of processes that times one operation at every size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.cluster.coordinator import Coordinator
from parabench.launch.launcher import observe
from parabench.launch.node import Course, NodeResult
from parabench.launch.rank_env import RankEnv
from parabench.launch.spec import LaunchSpec
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.plan.collective_protocol import LATENCY, CollectiveProtocol, Slot
from parabench.probes.step_clock import read_marks
from parabench.store.record import CollectiveSample, Failure, Launch, Status
from parabench.workloads.collectives import BenchJob, marks_path, run
from parabench.workloads.timing import MARKS


def launch_collective(
    case: CollectiveCase, protocol: CollectiveProtocol, *, deadline_s: float, crew: Coordinator | None = None
) -> Launch:
    """Run `case` once. Never raises for what happens inside the ranks.

    A launch in which any element was wrong is `wrong`. `crew` are the nodes that a case may need besides this one.
    Raises Interrupted when the driver is asked to stop.
    """
    course = collective_course(case, protocol)
    return timed(case, protocol, *observe(course, deadline_s, LaunchSpec.of(case, protocol, deadline_s), crew))


def timed(case: CollectiveCase, protocol: CollectiveProtocol, seen: Launch, parts: list[NodeResult]) -> Launch:
    """The launch of a collective with its calls: what `observe` tells, and what ranks handed over. Of a node that was
    lost there is no part."""
    schedule = protocol.schedule(case)
    results = [result for part in parts for result in part.results]
    marks = [each for part in parts for each in part.marks]
    ran = seen.facts.get("algorithm", case.algorithm)
    for result, own in zip(results, marks, strict=True):
        seen.collectives += _samples(case, schedule, result["rank"], own, result, ran)
    if seen.status is Status.OK:
        failure = _wrong(results)
        if failure is not None:
            seen.status, seen.failure = Status.WRONG, failure
    return seen


def collective_course(case: CollectiveCase, protocol: CollectiveProtocol) -> Course:
    """What a launch of a collective does."""
    schedule = protocol.schedule(case)

    def where(reached: int) -> str:
        at = reached // MARKS
        what = "call" if protocol.mode == LATENCY else "batch of calls"
        return f"to {_named(schedule[at], what)}" if at < len(schedule) else "to the end of its calls"

    def job(venue: RankEnv) -> BenchJob:
        return BenchJob(case, protocol, venue)

    return Course(
        case=case,
        size=case.world_size,
        entry=run,
        job=job,
        marks=lambda folder, rank: read_marks(marks_path(folder, rank), len(schedule), MARKS),
        where=where,
        moments=1,
    )


def _samples(
    case: CollectiveCase,
    schedule: Sequence[Slot],
    rank: int,
    marks: npt.NDArray[np.float64],
    result: Mapping[str, Any],
    ran: str,
) -> Iterator[CollectiveSample]:
    """One rank's rows, as far as it came."""
    wrong = {(size, in_place): count for size, in_place, count in result.get("wrong", [])}
    for seq, (slot, (start, duration, calls)) in enumerate(zip(schedule, marks, strict=True)):
        if math.isnan(duration):
            break
        yield CollectiveSample(
            rank=rank,
            step=slot.iteration,
            seq=seq,
            op=case.op,
            algorithm=ran,
            group_size=case.world_size,
            bytes=slot.bytes,
            start_s=float(start),
            duration_s=float(duration / calls),
            phase=slot.phase,
            in_place=slot.in_place,
            n_wrong=wrong.get((slot.bytes, slot.in_place)),
            calls=int(calls),
        )


def _wrong(results: Sequence[Mapping[str, Any]]) -> Failure | None:
    """The first rank that found wrong elements, with how many there are in all; None when all are right."""
    total: dict[tuple[int, bool], int] = {}
    first = None
    for result in results:
        for size, in_place, count in result["wrong"]:
            if count:
                first = result["rank"] if first is None else first
                total[size, in_place] = total.get((size, in_place), 0) + count
    if not total:
        return None
    said = "; ".join(
        f"{count} at {size_text(size)} {_form(in_place)}" for (size, in_place), count in sorted(total.items())
    )
    return Failure(f"wrong elements, summed over ranks: {said}", rank=first)


def _form(in_place: bool) -> str:
    return "in place" if in_place else "out of place"


def _named(slot: Slot, what: str) -> str:
    return f"{size_text(slot.bytes)} {_form(slot.in_place)}, {slot.phase} {what} {slot.iteration}"
