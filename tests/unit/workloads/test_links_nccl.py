"""Links over NCCL with fake streams: results do not depend on the host's time for starting messages."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from guard import GUARD_S
from parabench.plan.links import LinkProtocol
from parabench.store.record import MIB, Phase
from parabench.workloads.links import MOST_CYCLES_PER_S, TRIPS, NcclLinkEnd

LATENCY_S, BYTES_PER_S = 3e-6, 400e9
# The time in Python to start one message, more than ten times the time of the message.
ENQUEUE_S = 40e-6
CONNECT_S = 0.3


class Rank:
    """A host, and a device that runs the enqueued work in order."""

    def __init__(self) -> None:
        self.host = self.stream = 0.0

    def enqueue(self, seconds: float = 0.0) -> float:
        """Enqueue work of these seconds, and return its end."""
        self.stream = max(self.stream, self.host) + seconds
        return self.stream


class Machine:
    """Two ranks in two threads. A message starts when both ends have enqueued it, in the order of each direction."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mine = threading.local()
        self._ends: dict[Any, queue.Queue[Any]] = defaultdict(queue.Queue)
        self._connected = [False, False]
        machine = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: Any = None) -> None:
                self.at = machine.rank.enqueue()

            def elapsed_time(self, other: Any) -> float:
                return float(1e3 * (other.at - self.at))

        def synchronize(device: Any) -> None:
            self.rank.host = self.rank.enqueue()

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.rank.enqueue(cycles / MOST_CYCLES_PER_S))
        monkeypatch.setattr(dist, "P2POp", lambda way, tensor, peer: (way, tensor, peer))
        monkeypatch.setattr(dist, "batch_isend_irecv", self._batch)

    @property
    def rank(self) -> Rank:
        return self._mine.rank

    def run(self, *works: Callable[[], Any]) -> list[Any]:
        results: list[Any] = [None, None]
        self.ranks = [Rank(), Rank()]
        # The second rank is late, like a rank from another pair.
        self.ranks[1].host = 0.005

        def go(number: int) -> None:
            self._mine.rank, self._mine.number = self.ranks[number], number
            results[number] = works[number]()

        threads = [threading.Thread(target=go, args=(number,), daemon=True) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_S)
            assert not thread.is_alive(), "one end waits for a message that the other never sends"
        return results

    def _batch(self, ops: list[tuple[Any, torch.Tensor, int]]) -> list[Any]:
        rank, number = self.rank, self._mine.number
        # NCCL connects two ranks when they first meet, and their hosts wait for that.
        rank.host += ENQUEUE_S if self._connected[number] else CONNECT_S
        self._connected[number] = True
        ((way, tensor, peer),) = ops
        assert peer == 1 - number
        sends = way is dist.isend
        key = number if sends else peer
        self._ends[key, sends].put((rank.enqueue(), tensor.clone()))
        other, theirs = self._ends[key, not sends].get(timeout=GUARD_S)
        assert len(theirs) == len(tensor)
        if not sends:
            tensor.copy_(theirs)
        rank.stream = max(rank.stream, other) + LATENCY_S + tensor.nbytes / BYTES_PER_S
        return [SimpleNamespace(wait=lambda: None)]  # only the stream waits


def test_latency_and_bandwidth_are_the_devices(monkeypatch):
    protocol = LinkProtocol(most_bytes=8 * MIB, transfers=3)
    end, partner = (NcclLinkEnd(torch.device("cpu"), protocol, rank) for rank in range(2))

    def measure() -> tuple[float, float]:
        latency_s = end.latency(1)
        return latency_s, end.bandwidth(1, latency_s)

    ((latency_s, bytes_per_s), _) = Machine(monkeypatch).run(measure, lambda: partner.answer(0))
    assert latency_s == pytest.approx(LATENCY_S + 8 / BYTES_PER_S, rel=1e-6)
    assert bytes_per_s == pytest.approx(BYTES_PER_S, rel=1e-3)
    trips = [row for row in end.timed if row.bytes == 8]
    # 100 round trips, ten between two events, after a warm-up of one such reading.
    assert [row.phase for row in trips] == [Phase.WARMUP] + [Phase.MEASURE] * (100 // TRIPS)
    assert [(row.bytes, row.phase) for row in end.timed[len(trips) :]] == [
        *((size * MIB, Phase.WARMUP) for size in (1, 2, 4)), *[(8 * MIB, Phase.MEASURE)] * 3,
    ]  # fmt: skip
    assert {(row.from_rank, row.to_rank) for row in end.timed} == {(0, 1)}
