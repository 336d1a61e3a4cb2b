"""The measurement of links: with each partner in turn, first one of the two ranks sends, then the other."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from parabench.collectives import join
from parabench.launch.rank import device_of, join_group
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload, handed_over
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.protocol import TOO_QUICK
from parabench.store.record import Launch, LinkMessage, LinkSample, Phase, Status
from parabench.workloads.link_pairs import schedule
from parabench.workloads.link_wires import HostWire, NcclWire, TimedMessage, Wire

# Of a round a rank marks when it began, and of what it sent the latency and the bytes a second.
MARKS = 3


@dataclass(slots=True, kw_only=True)
class LinksReport(RankReport):
    """Which device the rank has, and every message that it timed. What follows from these stands in the marks too,
    where it outlives a rank that hangs later."""

    device: str | None = None
    messages: list[TimedMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = [TimedMessage(*each) for each in self.messages]


class LinksWorkload(Workload):
    """Both directions of every pair of `link_pairs.schedule`, in its order."""

    report_type = LinksReport

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        rounds = schedule(spec.nodes, spec.ranks_per_node)

        def position(numbers: int) -> str:
            number = numbers // MARKS
            if number >= len(rounds):
                return "to the end of its pairs"
            some = ", ".join(f"{a} and {b}" for a, b in rounds[number][:4])
            return f"to round {number + 1} of {len(rounds)} (ranks {some}{', ...' if len(rounds[number]) > 4 else ''})"

        return MarkLayout(columns=MARKS, moments=1, rows=len(rounds), position=position)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> LinksReport:
        case: Case = spec.case
        torch.set_num_threads(case.threads)
        device = device_of(case)
        clock = join_group(case, env, rank)
        marks = self.marks(spec).make(env.folder, rank)
        partners = {
            n: (b if rank == a else a, rank == a)
            for n, each in enumerate(schedule(spec.nodes, spec.ranks_per_node))
            for a, b in each
            if rank in (a, b)
        }
        # gloo sends no CUDA tensors: what it moves between devices goes through the host's memory, and so does this.
        kind, memory = (NcclWire, device) if case.backend == accelerator.BACKEND else (HostWire, torch.device("cpu"))
        wire: Wire = kind(memory, spec.protocol)
        for number, row in enumerate(marks):
            join.barrier(case.backend, device)
            row[0] = perf_counter()
            if number not in partners:
                continue
            partner, first = partners[number]
            for sends in (first, not first):
                if sends:
                    row[1] = wire.latency(partner)
                    row[2] = wire.bandwidth(partner, row[1])
                else:
                    wire.answer(partner)
        join.leave()
        return LinksReport(rank=rank, clock=clock, device=device_name(device), messages=wire.timed)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """A row for each direction of a pair, and every message that was timed by a rank that came to its end. What
        could not be measured is None with the reason."""
        reports, marks = zip(*handed_over(nodes, LinksReport), strict=True)
        why = None if launch.status is Status.OK else f"{launch.status}: {launch.failure}"
        launch.links += links(spec.case, marks, reports, why)
        launch.messages += [
            LinkMessage(report.rank, each.to_rank, each.bytes, phase, each.duration_s)
            for report in reports
            for each in report.messages
            for phase in [Phase.MEASURE if each.counts else Phase.WARMUP]
        ]


def links(case: Case, marks: Sequence[Marks], reports: Sequence[LinksReport], why: str | None) -> Iterator[LinkSample]:
    """What ranks marked; `why` is what ended those that came to no end."""
    per_node = case.world_size // case.nodes
    devices = [report.device or case.device for report in reports]
    for number, pairs in enumerate(schedule(case.nodes, per_node)):
        for a, b in pairs:
            for sender, receiver in ((a, b), (b, a)):
                _, latency_s, bytes_per_s = marks[sender][number].tolist()
                whole = not math.isnan(latency_s + bytes_per_s)
                yield LinkSample(
                    from_rank=sender,
                    to_rank=receiver,
                    from_node=sender // per_node,
                    to_node=receiver // per_node,
                    from_device=devices[sender],
                    to_device=devices[receiver],
                    latency_s=None if math.isnan(latency_s) else latency_s,
                    bytes_per_s=None if math.isnan(bytes_per_s) else bytes_per_s,
                    reason=None if whole else why or TOO_QUICK,
                )


def device_name(device: torch.device) -> str:
    """`cpu`, or `cuda:3` as this node counts."""
    if device.type == "cpu":
        return "cpu"
    return f"{accelerator.TYPE}:{int(os.environ['LOCAL_RANK']) % accelerator.api().device_count()}"
