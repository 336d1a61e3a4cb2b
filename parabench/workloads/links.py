"""Measure links. With each partner in turn, one of the two ranks sends, then the other.

The host's clock times messages between hosts' memories. Events time NCCL's messages, which are kernels on a stream.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parabench.collectives import join
from parabench.launch.rank import device_of, in_group, join_group
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, of_ranks
from parabench.launch.spec import LaunchSpec, RankEnv, Workload
from parabench.machine import accelerator
from parabench.machine.accelerator import current_stream, elapsed_s, record_event
from parabench.plan.case import Case
from parabench.plan.links import LATENCY_QUANTILE, TOO_QUICK, LinkProtocol, schedule
from parabench.probes import CaseReport
from parabench.store.record import Launch, LinkMessage, LinkSample, Phase, Status

# For each round a rank marks when it started, and the latency and the bytes per second of what it sent. A mark outlives
# a rank that hangs later; its report does not.
MARKS = 3


class LinksWorkload(Workload):
    """Both directions of every pair of `plan.links.schedule`, in its order."""

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


# The smallest message, which also carries the number of bytes that come next.
WORD_BYTES = 8

# The number of round trips between two events.
TRIPS = 10

# The time for which the device is held back, several times longer than the host needs to enqueue the round trips. No
# device counts more cycles per second.
HOLD_S, MOST_CYCLES_PER_S = 0.02, 3e9


def rate(size: int, took: Sequence[float], latency_s: float) -> float:
    """Return the bytes per second of a link: the median of the best third of transfers of `size` bytes.

    Disturbances make transfers longer. The very best one is no measure, because a shaped link lets some bytes through
    after a pause. NaN if a round trip takes more than half of it.
    """
    best = sorted(took)[: max(1, len(took) // 3)]
    typical = statistics.median(best)
    return size / (typical - 2 * latency_s) if 2 * latency_s < typical / 2 else math.nan


class Wire(ABC):
    """The end of the links of `rank`, with buffers on `device`; `timed` has every message that it timed."""

    QUANTILE: float

    def __init__(self, device: torch.device, protocol: LinkProtocol, rank: int) -> None:
        self._device, self._protocol, self._rank = device, protocol, rank
        self._word = torch.zeros(WORD_BYTES // 8, dtype=torch.int64, device=device)
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self.timed: list[LinkMessage] = []

    def latency(self, partner: int) -> float:
        """Return half a round trip of the smallest message, in seconds: its QUANTILE. The partner runs `answer`."""
        trips, counted = self._round_trips(partner)
        self._keep(partner, WORD_BYTES, trips, counted)
        return float(np.quantile(trips[-counted:], self.QUANTILE)) / 2

    def bandwidth(self, partner: int, latency_s: float) -> float:
        """Return the bytes per second of one transfer at a time, without the fixed cost of a message: a transfer takes
        S / bandwidth and a round trip, because the partner confirms it."""
        asked = self._protocol
        size = asked.least_bytes
        took = [self._transfer(partner, size)]
        while took[0] < asked.transfer_s and size < asked.most_bytes:
            self._keep(partner, size, took, 0)
            size = min(2 * size, asked.most_bytes)
            took = [self._transfer(partner, size)]
        while len(took) < asked.transfers and sum(took) < asked.most_s:
            took.append(self._transfer(partner, size))
        self._say(partner, 0)
        self._keep(partner, size, took, len(took))
        return rate(size, took, latency_s)

    @abstractmethod
    def answer(self, partner: int) -> None:
        """Run the other end of `latency` and `bandwidth`."""

    @abstractmethod
    def _round_trips(self, partner: int) -> tuple[list[float], int]:
        """Return the seconds of round trips, and how many of the last ones count."""

    @abstractmethod
    def _transfer(self, partner: int, size: int) -> float:
        """Return the seconds from when the partner is ready until it confirms the transfer."""

    @abstractmethod
    def _say(self, partner: int, number: int) -> None: ...

    def _keep(self, partner: int, size: int, took: Sequence[float], counted: int) -> None:
        """Keep the seconds of messages; the last `counted` of them count."""
        phases = [Phase.WARMUP] * (len(took) - counted) + [Phase.MEASURE] * counted
        for phase, seconds in zip(phases, took, strict=True):
            self.timed.append(LinkMessage(self._rank, partner, size, phase, seconds))

    def _bytes(self, size: int) -> Tensor:
        # It is written to: untouched memory would be one shared page, and come from the cache.
        if self._buffer.numel() < size:
            self._buffer = torch.ones(size, dtype=torch.uint8, device=self._device)
        return self._buffer[:size]


class HostWire(Wire):
    """Messages between hosts' memories."""

    QUANTILE = LATENCY_QUANTILE["cpu"]

    def answer(self, partner: int) -> None:
        for _ in range(self._protocol.warmup + self._protocol.round_trips):
            self._hear(partner)
            self._say(partner, 1)
        while size := self._hear(partner):
            into = self._bytes(size)
            self._say(partner, size)  # the memory is there; only now the other end starts its clock
            dist.recv(into, partner)
            self._say(partner, size)

    def _round_trips(self, partner: int) -> tuple[list[float], int]:
        counted = self._protocol.round_trips
        took = []
        for _ in range(self._protocol.warmup + counted):
            begin = perf_counter()
            self._say(partner, 1)
            self._hear(partner)
            took.append(perf_counter() - begin)
        return took, counted

    def _transfer(self, partner: int, size: int) -> float:
        payload = self._bytes(size)
        self._say(partner, size)
        self._hear(partner)
        begin = perf_counter()
        dist.send(payload, partner)
        self._hear(partner)
        return perf_counter() - begin

    def _say(self, partner: int, number: int) -> None:
        self._word.fill_(number)
        dist.send(self._word, partner)

    def _hear(self, partner: int) -> int:
        dist.recv(self._word, partner)
        return int(self._word.item())


class NcclWire(Wire):
    """Messages of NCCL; round trips are timed TRIPS at a time."""

    # Messages are batched (`batch_isend_irecv`) and use the group's communicator, which exists after a barrier of all
    # ranks. Single messages would make a communicator for each pair (ProcessGroupNCCL.cpp, pointToPoint). In Python,
    # the host starts messages more slowly than the device sends them. Round trips therefore wait behind a kernel that
    # does nothing until all of them are enqueued.

    QUANTILE = LATENCY_QUANTILE[accelerator.TYPE]

    def answer(self, partner: int) -> None:
        self._connect(partner, first=False)
        for _ in range(sum(self._readings())):
            self._trips(partner, first=False)
        while size := self._hear(partner):
            into = self._bytes(size)
            accelerator.synchronize(self._device)  # the memory is there
            works = [
                self._start(dist.isend, self._word, partner),
                self._start(dist.irecv, into, partner),
                self._start(dist.isend, self._word, partner),
            ]
            self._finish(works)

    def _round_trips(self, partner: int) -> tuple[list[float], int]:
        self._connect(partner, first=True)
        warmup, counted = self._readings()
        return [self._trips(partner, first=True) for _ in range(warmup + counted)], counted

    def _readings(self) -> tuple[int, int]:
        """Return how many times TRIPS round trips are timed: for warm-up, and measured."""
        return -(-self._protocol.warmup // TRIPS), -(-self._protocol.round_trips // TRIPS)

    def _connect(self, partner: int, *, first: bool) -> None:
        """Make one round trip without a clock: the first message of a pair connects it."""
        self._finish(self._trip(partner, first=first))

    def _trips(self, partner: int, *, first: bool) -> float:
        """Return the seconds of a round trip, the mean of TRIPS consecutive ones on the device. One more before them
        brings both ends in step."""
        _hold()
        works = self._trip(partner, first=first)
        works[-1].wait()  # the stream waits, the host goes on
        begin = self._now()
        for _ in range(TRIPS):
            works += self._trip(partner, first=first)
        works[-1].wait()
        end = self._now()
        self._finish(works)
        return elapsed_s(begin, end) / TRIPS

    def _trip(self, partner: int, *, first: bool) -> list[Any]:
        """Enqueue this end's half of a round trip; NCCL's stream keeps the order."""
        ways = (dist.isend, dist.irecv) if first else (dist.irecv, dist.isend)
        return [self._start(way, self._word, partner) for way in ways]

    def _transfer(self, partner: int, size: int) -> float:
        payload = self._bytes(size)
        self._say(partner, size)
        _hold()
        ready = self._start(dist.irecv, self._word, partner)
        ready.wait()
        begin = self._now()
        works = [ready, self._start(dist.isend, payload, partner), self._start(dist.irecv, self._word, partner)]
        works[-1].wait()
        end = self._now()
        self._finish(works)
        return elapsed_s(begin, end)

    def _now(self) -> accelerator.Event:
        return record_event(current_stream(self._device))

    def _say(self, partner: int, number: int) -> None:
        self._word.fill_(number)
        self._finish([self._start(dist.isend, self._word, partner)])

    def _hear(self, partner: int) -> int:
        self._finish([self._start(dist.irecv, self._word, partner)])
        return int(self._word.item())

    def _start(self, way: Any, tensor: Tensor, partner: int) -> Any:
        """Enqueue one message. Returns the work that ends with it."""
        return dist.batch_isend_irecv([dist.P2POp(way, tensor, partner)])[-1]

    def _finish(self, works: Sequence[Any]) -> None:
        """Wait until the device has done all of them; a work that is never waited for keeps its tensors."""
        for work in works:
            work.wait()
        accelerator.synchronize(self._device)


def _hold() -> None:
    """Hold the device back until everything that comes next is enqueued."""
    accelerator.api()._sleep(int(HOLD_S * MOST_CYCLES_PER_S))
