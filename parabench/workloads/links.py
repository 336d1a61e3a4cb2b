"""Measure the links between pairs of ranks, in one direction and then in the other.

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

# The start of a round, and the latency and bytes per second of this rank's messages. If a rank hangs later, its marks
# are kept, but its report is lost.
MARKS = 3


class LinksWorkload(Workload):
    """Measure both directions of every pair of ranks, in the order of `plan.links.schedule`."""

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
        end: LinkEnd
        if case.backend == accelerator.BACKEND:
            end = NcclLinkEnd(device, spec.protocol, rank)
        else:  # gloo cannot send CUDA tensors: its messages go through host memory
            end = HostLinkEnd(torch.device("cpu"), spec.protocol, rank)
        with in_group(partial(join_group, case, env, rank)) as clock:
            self._measure(spec, rank, device, end, self.marks(spec).make(env.folder, rank))
        return RankReport(rank=rank, clock=clock, cases=[CaseReport(device=str(device), messages=end.timed)])

    def _measure(self, spec: LaunchSpec, rank: int, device: torch.device, end: LinkEnd, marks: Marks) -> None:
        """Measure the links of this rank in all rounds. Marks of a round are its start, latency and bandwidth."""
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
                    row[1] = end.latency(partner)
                    row[2] = end.bandwidth(partner, row[1])
                else:
                    end.answer(partner)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """Add a row for each direction of a pair, and for each timed message. Unknown values have a reason."""
        reports, marks = zip(*of_ranks(nodes), strict=True)
        why = None if launch.status is Status.OK else f"{launch.status}: {launch.failure}"
        launch.links += links(spec.case, marks, reports, why)
        launch.messages += [each for report in reports for each in report.of(0).messages]


def links(case: Case, marks: Sequence[Marks], reports: Sequence[RankReport], why: str | None) -> Iterator[LinkSample]:
    """Yield a row for each direction of a pair. `why` is the reason for missing marks."""
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

# The device is kept busy for this time, several times longer than the host needs to enqueue the round trips. No device
# counts more cycles per second.
HOLD_S, MOST_CYCLES_PER_S = 0.02, 3e9


def rate(size: int, took: Sequence[float], latency_s: float) -> float:
    """Return the bytes per second of a link: `size` over the median time of the best third of transfers.

    A round trip is subtracted from the time. The fastest transfer alone would be too fast, because a shaped link lets
    some bytes through after a pause. If a round trip takes more than half of the time, return NaN.
    """
    best = sorted(took)[: max(1, len(took) // 3)]
    typical = statistics.median(best)
    return size / (typical - 2 * latency_s) if 2 * latency_s < typical / 2 else math.nan


class LinkEnd(ABC):
    """One end of links, at `rank`, with buffers on `device`. `timed` has every timed message.

    One end calls `latency` and `bandwidth`, and meanwhile the partner calls `answer`.
    """

    QUANTILE: float

    def __init__(self, device: torch.device, protocol: LinkProtocol, rank: int) -> None:
        self._device, self._protocol, self._rank = device, protocol, rank
        self._word = torch.zeros(WORD_BYTES // 8, dtype=torch.int64, device=device)
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self.timed: list[LinkMessage] = []

    def latency(self, partner: int) -> float:
        """Return half a round trip of the smallest message in seconds, at the quantile QUANTILE."""
        trips, counted = self._round_trips(partner)
        self._keep(partner, WORD_BYTES, trips, counted)
        return float(np.quantile(trips[-counted:], self.QUANTILE)) / 2

    def bandwidth(self, partner: int, latency_s: float) -> float:
        """Return the bytes per second of one transfer at a time, without the fixed cost of a message.

        The partner confirms each transfer, so a transfer of S bytes takes S / bandwidth and a round trip.
        """
        asked = self._protocol
        size = asked.least_bytes
        took = [self._transfer(partner, size)]
        while took[0] < asked.transfer_s and size < asked.most_bytes:
            self._keep(partner, size, took, 0)
            size = min(2 * size, asked.most_bytes)
            took = [self._transfer(partner, size)]
        while len(took) < asked.transfers and sum(took) < asked.most_s:
            took.append(self._transfer(partner, size))
        self._send_number(partner, 0)
        self._keep(partner, size, took, len(took))
        return rate(size, took, latency_s)

    @abstractmethod
    def answer(self, partner: int) -> None:
        """Answer the messages of `latency` and `bandwidth` of the partner."""

    @abstractmethod
    def _round_trips(self, partner: int) -> tuple[list[float], int]:
        """Return the seconds of round trips, and the number of the last ones that count."""

    @abstractmethod
    def _transfer(self, partner: int, size: int) -> float:
        """Return the seconds of a transfer, from when the partner is ready until it confirms."""

    @abstractmethod
    def _send_number(self, partner: int, number: int) -> None:
        """Send a small message with a number to the partner."""

    def _keep(self, partner: int, size: int, took: Sequence[float], counted: int) -> None:
        """Record the seconds of messages in `timed`. The last `counted` of them count."""
        phases = [Phase.WARMUP] * (len(took) - counted) + [Phase.MEASURE] * counted
        for phase, seconds in zip(phases, took, strict=True):
            self.timed.append(LinkMessage(self._rank, partner, size, phase, seconds))

    def _bytes(self, size: int) -> Tensor:
        # Write to it, because untouched memory would be one shared page, and be read from the cache.
        """Return a buffer of `size` bytes, which is reused."""
        if self._buffer.numel() < size:
            self._buffer = torch.ones(size, dtype=torch.uint8, device=self._device)
        return self._buffer[:size]


class HostLinkEnd(LinkEnd):
    """Links between hosts' memories, timed on the host's clock."""

    QUANTILE = LATENCY_QUANTILE["cpu"]

    def answer(self, partner: int) -> None:
        for _ in range(self._protocol.warmup + self._protocol.round_trips):
            self._receive_number(partner)
            self._send_number(partner, 1)
        while size := self._receive_number(partner):
            into = self._bytes(size)
            self._send_number(partner, size)  # the memory is ready, and the partner starts its clock
            dist.recv(into, partner)
            self._send_number(partner, size)

    def _round_trips(self, partner: int) -> tuple[list[float], int]:
        counted = self._protocol.round_trips
        took = []
        for _ in range(self._protocol.warmup + counted):
            begin = perf_counter()
            self._send_number(partner, 1)
            self._receive_number(partner)
            took.append(perf_counter() - begin)
        return took, counted

    def _transfer(self, partner: int, size: int) -> float:
        payload = self._bytes(size)
        self._send_number(partner, size)
        self._receive_number(partner)
        begin = perf_counter()
        dist.send(payload, partner)
        self._receive_number(partner)
        return perf_counter() - begin

    def _send_number(self, partner: int, number: int) -> None:
        self._word.fill_(number)
        dist.send(self._word, partner)

    def _receive_number(self, partner: int) -> int:
        """Receive a small message from the partner, and return its number."""
        dist.recv(self._word, partner)
        return int(self._word.item())


class NcclLinkEnd(LinkEnd):
    """Links of NCCL, timed by events on the device. TRIPS round trips are timed together."""

    # Messages are batched (`batch_isend_irecv`) and use the group's communicator, which exists after a barrier of all
    # ranks. Single messages would make a communicator for each pair (ProcessGroupNCCL.cpp, pointToPoint). In Python,
    # the host starts messages more slowly than the device sends them. Round trips therefore wait behind a kernel that
    # does nothing until all of them are enqueued.

    QUANTILE = LATENCY_QUANTILE[accelerator.TYPE]

    def answer(self, partner: int) -> None:
        self._connect(partner, first=False)
        for _ in range(sum(self._readings())):
            self._trips(partner, first=False)
        while size := self._receive_number(partner):
            into = self._bytes(size)
            accelerator.synchronize(self._device)  # until the memory is ready
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
        """Return the numbers of readings, each of TRIPS round trips: (warm-up, measured)."""
        return -(-self._protocol.warmup // TRIPS), -(-self._protocol.round_trips // TRIPS)

    def _connect(self, partner: int, *, first: bool) -> None:
        """Make one untimed round trip, because the first message of a pair connects it."""
        self._finish(self._trip(partner, first=first))

    def _trips(self, partner: int, *, first: bool) -> float:
        """Return the mean seconds of TRIPS consecutive round trips on the device, after an untimed one."""
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
        """Enqueue this end's messages of a round trip. NCCL's stream keeps their order."""
        ways = (dist.isend, dist.irecv) if first else (dist.irecv, dist.isend)
        return [self._start(way, self._word, partner) for way in ways]

    def _transfer(self, partner: int, size: int) -> float:
        payload = self._bytes(size)
        self._send_number(partner, size)
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

    def _send_number(self, partner: int, number: int) -> None:
        self._word.fill_(number)
        self._finish([self._start(dist.isend, self._word, partner)])

    def _receive_number(self, partner: int) -> int:
        """Receive a small message from the partner, and return its number."""
        self._finish([self._start(dist.irecv, self._word, partner)])
        return int(self._word.item())

    def _start(self, way: Any, tensor: Tensor, partner: int) -> Any:
        """Enqueue one message. Return its work."""
        return dist.batch_isend_irecv([dist.P2POp(way, tensor, partner)])[-1]

    def _finish(self, works: Sequence[Any]) -> None:
        """Wait for all works and for the device. A work without a wait would keep its tensors."""
        for work in works:
            work.wait()
        accelerator.synchronize(self._device)


def _hold() -> None:
    """Keep the device busy until the following messages are enqueued."""
    accelerator.api()._sleep(int(HOLD_S * MOST_CYCLES_PER_S))
