"""One rank of the measurement of links: with each partner in turn, first one of the two sends, then the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parabench.collectives import join
from parabench.launch.rank import device_of, die_with_driver, hand_over, join_group
from parabench.launch.rank_env import RankEnv
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.protocol import QUANTILE, WORD_BYTES, LinkProtocol, rate
from parabench.workloads.link_pairs import schedule
from parabench.workloads.links_nccl import NcclWire

# Of a round a rank marks when it began, and of what it sent the latency and the bytes a second.
MARKS = 3


@dataclass(frozen=True, slots=True)
class LinkJob:
    """What the driver sends to every rank that measures links."""

    case: Case
    protocol: LinkProtocol
    venue: RankEnv


def run(job: LinkJob) -> None:
    """The entry of a rank that measures links."""
    die_with_driver()
    hand_over(job, measure)


def measure(job: LinkJob, rank: int) -> dict[str, Any]:
    """Join the group, measure with every partner, leave the group. Returns which `device` the rank has, and every
    message that it timed: `timed`, [to rank, bytes, whether it counts, seconds]. What follows from these stands in the
    marks too, where it outlives a rank that hangs later."""
    case = job.case
    torch.set_num_threads(case.threads)
    device = device_of(case)
    clock = join_group(job, rank)
    rounds = schedule(case.nodes, case.world_size // case.nodes)
    marks = np.memmap(marks_path(job.venue.folder, rank), dtype=np.float64, mode="w+", shape=(len(rounds), MARKS))
    marks[:] = np.nan
    partners = {
        n: (b if rank == a else a, rank == a) for n, each in enumerate(rounds) for a, b in each if rank in (a, b)
    }
    # gloo sends no CUDA tensors: what it moves between devices goes through the host's memory, and so does this.
    wire = NcclWire(device, job.protocol) if case.backend == "nccl" else Wire(job.protocol)
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
    return {"device": device_name(device), "timed": wire.timed, **clock}


def device_name(device: torch.device) -> str:
    """`cpu`, or `cuda:3` as this node counts."""
    return "cpu" if device.type == "cpu" else f"cuda:{int(os.environ['LOCAL_RANK']) % accelerator.api().device_count()}"


class Wire:
    """This rank's end of its links, with buffers in the host's memory."""

    def __init__(self, protocol: LinkProtocol) -> None:
        self._protocol = protocol
        self._word = torch.zeros(WORD_BYTES // 8, dtype=torch.int64)
        self._buffer = torch.empty(0, dtype=torch.uint8)
        # (to rank, bytes, whether it counts, seconds) of every round trip and transfer.
        self.timed: list[tuple[int, int, bool, float]] = []

    def latency(self, partner: int) -> float:
        """Half a round trip of the smallest message in seconds, as QUANTILE says; the other end is in `answer`."""
        trips = [self._round_trip(partner) for _ in range(self._protocol.warmup + self._protocol.round_trips)]
        counted = trips[self._protocol.warmup :]
        self._keep(partner, WORD_BYTES, trips, len(counted))
        return float(np.quantile(counted, QUANTILE["cpu"])) / 2

    def bandwidth(self, partner: int, latency_s: float) -> float:
        """Bytes a second of one transfer at a time, without what a message costs however small it is: a transfer takes
        S / bandwidth and a round trip, for the partner says when it has all."""
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

    def answer(self, partner: int) -> None:
        """The other end of `latency` and `bandwidth`."""
        for _ in range(self._protocol.warmup + self._protocol.round_trips):
            self._hear(partner)
            self._say(partner, 1)
        while size := self._hear(partner):
            into = self._bytes(size)
            self._say(partner, size)  # only now the other's clock begins: the memory is there
            dist.recv(into, partner)
            self._say(partner, size)

    def _keep(self, partner: int, size: int, took: Sequence[float], counted: int) -> None:
        """Note what messages took; the last `counted` of them count."""
        uncounted = len(took) - counted
        self.timed += [(partner, size, at >= uncounted, seconds) for at, seconds in enumerate(took)]

    def _round_trip(self, partner: int) -> float:
        begin = perf_counter()
        self._say(partner, 1)
        self._hear(partner)
        return perf_counter() - begin

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

    def _bytes(self, size: int) -> Tensor:
        # Written to: untouched memory would be one page that all of it shares, and come from the cache.
        if self._buffer.numel() < size:
            self._buffer = torch.ones(size, dtype=torch.uint8)
        return self._buffer[:size]


def marks_path(folder: Path, rank: int) -> Path:
    """Where a rank's marks lie."""
    return folder / f"marks{rank}.f64"
