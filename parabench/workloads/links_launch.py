"""measure(case) -> rows: one group of ranks that measures what lies between them, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from parabench.cluster.coordinator import Coordinator
from parabench.launch.launcher import observe
from parabench.launch.node import Course, Marks
from parabench.launch.rank_env import RankEnv
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import TOO_QUICK, LinkProtocol
from parabench.probes.step_clock import read_marks
from parabench.store.record import LinkMessage, LinkSample, Phase, Status
from parabench.workloads.link_pairs import schedule
from parabench.workloads.links import MARKS, LinkJob, marks_path, run

# What joining may take, and each direction of a round beside what its protocol allows: a link that is slower than that
# hangs.
LEAST_DEADLINE_S = 60.0
SLACK_S = 5.0


def measure(
    case: Case, protocol: LinkProtocol, *, deadline_s: float | None = None, crew: Coordinator | None = None
) -> tuple[list[LinkSample], list[LinkMessage]]:
    """Both directions of every pair of `links.pairs.schedule`, in its order, and every message that was timed by a rank
    that came to its end. What could not be measured is None with the reason, whatever happened inside the ranks. Raises
    Interrupted when the driver is asked to stop, NodeGone when a node of the `crew` does not come back."""
    deadline_s = deadline_s or expected_s(case, protocol)
    course = link_course(case, protocol)
    seen, parts = observe(course, deadline_s, LaunchSpec.of(case, protocol, deadline_s), crew)
    marks = {rank: own for part in parts for rank, own in zip(part.ranks, part.marks, strict=True)}
    results = {result["rank"]: result for part in parts for result in part.results}
    why = None if seen.status is Status.OK else f"{seen.status}: {seen.failure}"
    return rows(case, marks, results, why), messages(results)


def expected_s(case: Case, protocol: LinkProtocol) -> float:
    """How long the measurement may take at most, in seconds."""
    rounds = len(schedule(case.nodes, case.world_size // case.nodes))
    return LEAST_DEADLINE_S + rounds * 2 * (protocol.most_s + SLACK_S)


def link_course(case: Case, protocol: LinkProtocol) -> Course:
    """What a launch that measures links does."""
    rounds = schedule(case.nodes, case.world_size // case.nodes)

    def where(reached: int) -> str:
        number = reached // MARKS
        if number >= len(rounds):
            return "to the end of its pairs"
        some = ", ".join(f"{a} and {b}" for a, b in rounds[number][:4])
        return f"to round {number + 1} of {len(rounds)} (ranks {some}{', ...' if len(rounds[number]) > 4 else ''})"

    def job(venue: RankEnv) -> LinkJob:
        return LinkJob(case, protocol, venue)

    return Course(
        case=case,
        size=case.world_size,
        entry=run,
        job=job,
        marks=lambda folder, rank: read_marks(marks_path(folder, rank), len(rounds), MARKS),
        where=where,
        moments=1,
    )


def rows(
    case: Case, marks: Mapping[int, Marks], results: Mapping[int, Mapping[str, Any]], why: str | None
) -> list[LinkSample]:
    """What ranks marked, a row for each direction of a pair. `why` is what ended those that came to no end."""
    per_node = case.world_size // case.nodes
    devices = {rank: str(result.get("device", case.device)) for rank, result in results.items()}
    found = []
    for number, pairs in enumerate(schedule(case.nodes, per_node)):
        for a, b in pairs:
            for sender, receiver in ((a, b), (b, a)):
                own = marks.get(sender)
                _, latency_s, bytes_per_s = [math.nan] * MARKS if own is None else own[number].tolist()
                whole = not math.isnan(latency_s + bytes_per_s)
                found.append(
                    LinkSample(
                        from_rank=sender,
                        to_rank=receiver,
                        from_node=sender // per_node,
                        to_node=receiver // per_node,
                        from_device=devices.get(sender, case.device),
                        to_device=devices.get(receiver, case.device),
                        latency_s=None if math.isnan(latency_s) else latency_s,
                        bytes_per_s=None if math.isnan(bytes_per_s) else bytes_per_s,
                        reason=None if whole else why or TOO_QUICK,
                    )
                )
    return found


def messages(results: Mapping[int, Mapping[str, Any]]) -> list[LinkMessage]:
    """What ranks timed, by the rank that sent."""
    return [
        LinkMessage(rank, to_rank, size, Phase.MEASURE if counts else Phase.WARMUP, seconds)
        for rank, result in sorted(results.items())
        for to_rank, size, counts, seconds in result.get("timed", [])
    ]
