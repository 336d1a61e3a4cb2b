"""The measurement of links: with each partner in turn, one of the two ranks sends, then the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter

import torch

from parabench.collectives import join
from parabench.launch.rank import device_of, in_group, join_group
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, of_ranks
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.protocol import TOO_QUICK
from parabench.probes import CaseReport
from parabench.store.record import Launch, LinkSample, Status
from parabench.workloads.link_pairs import schedule
from parabench.workloads.link_wires import HostWire, NcclWire, Wire

# For each round a rank marks when it started, and the latency and the bytes per second of what it sent. A mark outlives
# a rank that hangs later; its report does not.
MARKS = 3


class LinksWorkload(Workload):
    """Both directions of every pair of `link_pairs.schedule`, in its order."""

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        rounds = schedule(spec.nodes, spec.ranks_per_node)

        def position(numbers: int) -> str:
            number = numbers // MARKS
            if number >= len(rounds):
                return "to the end of its pairs"
            some = ", ".join(f"{a} and {b}" for a, b in rounds[number][:4])
            return f"to round {number + 1} of {len(rounds)} (ranks {some}{', ...' if len(rounds[number]) > 4 else ''})"

        return MarkLayout(columns=MARKS, moments=1, rows=len(rounds), position=position)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        case: Case = spec.case
        torch.set_num_threads(case.threads)
        device = device_of(case)
        # gloo sends no CUDA tensors: its messages between devices go through host memory, so these do too.
        kind, memory = (NcclWire, device) if case.backend == accelerator.BACKEND else (HostWire, torch.device("cpu"))
        wire: Wire = kind(memory, spec.protocol, rank)
        with in_group(partial(join_group, case, env, rank)) as clock:
            self._measure(spec, rank, device, wire, self.marks(spec).make(env.folder, rank))
        return RankReport(rank=rank, clock=clock, cases=[CaseReport(device=str(device), messages=wire.timed)])

    def _measure(self, spec: LaunchSpec, rank: int, device: torch.device, wire: Wire, marks: Marks) -> None:
        partners = {
            n: (b if rank == a else a, rank == a)
            for n, each in enumerate(schedule(spec.nodes, spec.ranks_per_node))
            for a, b in each
            if rank in (a, b)
        }
        for number, row in enumerate(marks):
            join.barrier(spec.case.backend, device)
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

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """Add a row for each direction of a pair, and every message that a rank timed which came to its end. If a link
        could not be measured, it is None with the reason."""
        reports, marks = zip(*of_ranks(nodes), strict=True)
        why = None if launch.status is Status.OK else f"{launch.status}: {launch.failure}"
        launch.links += links(spec.case, marks, reports, why)
        launch.messages += [each for report in reports for each in report.of(0).messages]


def links(case: Case, marks: Sequence[Marks], reports: Sequence[RankReport], why: str | None) -> Iterator[LinkSample]:
    """Yield the links that ranks marked; `why` is why some ranks did not come to their end."""
    per_node = case.world_size // case.nodes
    devices = [report.of(0).device or case.device for report in reports]
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
