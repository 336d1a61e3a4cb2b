"""An algorithm's ranks in one process, over a wire that is nothing but memory: for exact tests and for pictures.

The wire keeps gloo's rules and uses all the freedom that they leave, so that a race which is rare on a network shows
every time. A message leaves the sender's memory as late as it may, a receive buffer holds nonsense from the moment
when both ends are posted until its wait has returned, and ranks that wait for one another are named instead of hanging.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from parabench.collectives.wire import Wire

T = TypeVar("T")


class SimulationError(RuntimeError):
    """What would hang, or be a race, on a real wire."""


@dataclass(eq=False, slots=True)
class Message:
    """One message; `data` is what left the sender's memory."""

    src: int
    dst: int
    nbytes: int
    data: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A rank posts its end of a message, or has waited for it."""

    kind: Literal["post", "waited"]
    message: Message


@dataclass(frozen=True)
class Record(Generic[T]):
    """What each rank returned, every message in the order of sending, and each rank's own order of events."""

    results: list[T]
    messages: list[Message]
    events: list[list[Event]]

    def sent(self, rank: int) -> list[Message]:
        return [message for message in self.messages if message.src == rank]

    def received(self, rank: int) -> list[Message]:
        return [message for message in self.messages if message.dst == rank]


@dataclass(eq=False, slots=True)
class _End:
    """One end of a message: what a backend calls a Work."""

    simulation: Simulation
    rank: int
    peer: int
    sends: bool
    tensor: Tensor
    other: _End | None = None
    message: Message | None = None
    over: bool = False

    def wait(self, timeout: Any = None) -> bool:
        if self.over:
            raise SimulationError(f"{self}: waited for twice; gloo would never return")
        self.simulation._block(self)
        self.over = True
        assert self.message is not None  # a message exists once its sender has posted, and that is past
        if self.message.data is None:
            source = self if self.sends else self.other
            assert source is not None
            self.message.data = source.tensor.clone()
        if not self.sends:
            self.tensor.copy_(self.message.data)
        self.simulation._events[self.rank].append(Event("waited", self.message))
        return True

    def __str__(self) -> str:
        way = "sends to" if self.sends else "receives from"
        return f"rank {self.rank} {way} rank {self.peer} ({self.tensor.numel()} x {self.tensor.dtype})"


class _Stopped(BaseException):
    """Unwinds the ranks that remain after a failure."""


@dataclass(eq=False, slots=True)
class _Rank:
    """A rank's thread. Only one of all runs at a time: whoever holds the turn."""

    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    waits_for: _End | None = None
    returned: bool = False
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Backend:
    """The `Backend` of one rank."""

    simulation: Simulation
    rank: int

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Any:  # noqa: N803
        return self.simulation._post(self.rank, dstRank, tag, tensors, sends=True)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Any:  # noqa: N803
        return self.simulation._post(self.rank, srcRank, tag, tensors, sends=False)


def _can_go_on(end: _End | None) -> bool:
    return end is None or end.other is not None


def scribble(tensor: Tensor) -> None:
    """Fill with what nobody would take for data."""
    tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min // 3)


class Simulation:
    """`size` ranks and their wires. Scratch buffers live as long as it does, as in a process group.

    With `order`, a rank named later goes on only when none before it can: the last is as slow as can be. Without it,
    whoever has to wait for data waits as long as others can do something else.
    """

    def __init__(self, size: int, order: Sequence[int] | None = None) -> None:
        self.size = size
        self._order = order
        self.scratch: list[dict[tuple[str, torch.dtype, torch.device, bool], Tensor]] = [{} for _ in range(size)]

    def run(self, work: Callable[[Wire], T]) -> Record[T]:
        """Run `work(wire)` on every rank. Raises SimulationError for a deadlock, a message that nobody receives or
        waits for, and a wait that would never return; what a rank raises is raised here."""
        self._open: dict[tuple[int, int, int, bool], deque[_End]] = {}
        self._ends: list[_End] = []
        self._events: list[list[Event]] = [[] for _ in range(self.size)]
        self._messages: list[Message] = []
        self._ranks = [_Rank() for _ in range(self.size)]
        self._main = threading.Semaphore(0)
        self._stopping = False
        results: list[Any] = [None] * self.size
        for buffers in self.scratch:
            for buffer in buffers.values():
                scribble(buffer)
        threads = [
            threading.Thread(target=self._be, args=(rank, work, results), name=f"simulated rank {rank}", daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        try:
            while (rank := self._next()) is not None:
                self._hand_over(rank)
                if (error := self._ranks[rank].error) is not None:
                    error.add_note(f"on rank {rank} of {self.size}, simulated")
                    raise error
        finally:
            self._stopping = True
            for rank, thread in enumerate(threads):
                while not self._ranks[rank].returned:
                    self._hand_over(rank)
                thread.join()
        self._check_ends()
        return Record(results, self._messages, self._events)

    def _be(self, rank: int, work: Callable[[Wire], T], results: list[T]) -> None:
        me = self._ranks[rank]
        try:
            self._await_turn(rank)
            wire = Wire(_Backend(self, rank), range(self.size), rank, scratch=self.scratch[rank])
            results[rank] = work(wire)
        except _Stopped:
            pass
        except BaseException as error:
            me.error = error
        me.returned = True
        self._main.release()

    def _hand_over(self, rank: int) -> None:
        self._ranks[rank].turn.release()
        self._main.acquire()

    def _await_turn(self, rank: int) -> None:
        self._ranks[rank].turn.acquire()
        if self._stopping:
            raise _Stopped

    def _next(self) -> int | None:
        """Who goes on; None when all have returned."""
        able = [rank for rank, each in enumerate(self._ranks) if not each.returned and _can_go_on(each.waits_for)]
        if able:
            return min(able, key=self._reluctance if self._order is None else self._order.index)
        if all(each.returned for each in self._ranks):
            return None
        whose = "; ".join(
            f"{each.waits_for}" if each.waits_for is not None else f"rank {rank} has returned"
            for rank, each in enumerate(self._ranks)
        )
        raise SimulationError(f"deadlock, everybody waits: {whose}")

    def _reluctance(self, rank: int) -> tuple[bool, int]:
        """A receiver whose message has not left comes last: data leave as late as they may."""
        end = self._ranks[rank].waits_for
        takes = end is not None and not end.sends and end.message is not None and end.message.data is None
        return takes, rank

    def _block(self, end: _End) -> None:
        me = self._ranks[end.rank]
        me.waits_for = end
        self._main.release()
        self._await_turn(end.rank)
        me.waits_for = None

    def _post(self, rank: int, peer: int, tag: int, tensors: Sequence[Tensor], *, sends: bool) -> _End:
        (tensor,) = tensors
        end = _End(self, rank, peer, sends, tensor)
        if peer == rank or not 0 <= peer < self.size or not tensor.is_contiguous():
            raise SimulationError(f"{end}: needs another rank of {self.size}, and a contiguous tensor")
        self._ends.append(end)
        src, dst = (rank, peer) if sends else (peer, rank)
        others = self._open.get((src, dst, tag, not sends))
        if others:
            other = others.popleft()
            if other.tensor.nbytes != tensor.nbytes:
                raise SimulationError(f"the sizes differ: {other}, but {end}")
            assert other.message is not None
            end.other, other.other, end.message = other, end, other.message
            scribble(other.tensor if sends else tensor)
        else:
            end.message = Message(src, dst, tensor.nbytes)
            self._open.setdefault((src, dst, tag, sends), deque()).append(end)
        if sends:
            self._messages.append(end.message)
        self._events[rank].append(Event("post", end.message))
        return end

    def _check_ends(self) -> None:
        for end in self._ends:
            if end.other is None:
                raise SimulationError(f"{end}: the other end never came")
            if not end.over:
                raise SimulationError(f"{end}: returned without having waited for it")


def rounds(record: Record[Any], *, one_port: bool) -> dict[Message, int]:
    """The logical time of every message, from 1: a message takes one round, begins when both ends are posted, and a
    rank goes on from a wait when that message's round is over.

    With `one_port` a rank sends at most one message and receives at most one in a round, in the order of posting: the
    model in which the costs of collectives are stated (Thakur, Rabenseifner and Gropp, 2005). Without it the number
    of rounds is the longest chain of messages.
    """
    found: dict[Message, int] = {}
    place = [0] * len(record.events)
    posted: dict[Message, list[int]] = {}
    now = 0
    while len(found) < len(record.messages):
        for rank, events in enumerate(record.events):
            while place[rank] < len(events):
                event = events[place[rank]]
                if event.kind == "post":
                    posted.setdefault(event.message, []).append(place[rank])
                elif found.get(event.message, now + 1) > now:
                    break
                place[rank] += 1
        now += 1
        senders, receivers = set[int](), set[int]()
        for message, ends in sorted(posted.items(), key=lambda item: (max(item[1]), item[0].src)):
            busy = one_port and (message.src in senders or message.dst in receivers)
            if len(ends) == 2 and not busy:
                found[message] = now
                senders.add(message.src)
                receivers.add(message.dst)
                del posted[message]
    return found
