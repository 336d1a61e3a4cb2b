"""The nodes of one launch, as the driver of one of them sees them: who takes part, and what the others have said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import HashStore

from parabench.launch.meeting import RendezvousPoint
from parabench.launch.store_client import StoreClient

# All traffic of ranks of one node stays on loopback. NCCL takes a bare name for the beginning of one.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}

# Without a sign of life for so long a node is lost.
DEAD_AFTER_S = 10.0

# Why the ranks of a launch are ended before their time.
FAILED, HUNG, STOP, LOST = "failed", "hung", "stop", "lost"


@dataclass(slots=True)
class Abort:
    """What ends a launch on this node from outside; the first that is said counts."""

    why: str | None = None
    _act: Callable[[str], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, why: str) -> None:
        """End this node's ranks because of `why`, once."""
        with self._lock:
            if self.why is not None:
                return
            self.why, act = why, self._act
        if act is not None:
            act(why)

    @contextmanager
    def heard_by(self, act: Callable[[str], None]) -> Iterator[None]:
        """While the block runs `act(why)` is called when a word comes, in the thread of who says it; at once when one
        has come already."""
        with self._lock:
            self._act, said = act, self.why
        if said is not None:
            act(said)
        try:
            yield
        finally:
            with self._lock:
                self._act = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """The nodes of one launch. `line` leads to the store, where `prefix` begins its keys; a node alone needs neither.

    `tell(why)` lets the other nodes know that this one's ranks did not end well.
    """

    node: int = 0
    nodes: int = 1
    ranks_per_node: int
    environment: Mapping[str, str] = field(default_factory=lambda: LOOPBACK)
    meeting: RendezvousPoint | None = None
    line: StoreClient | None = None
    prefix: str = ""
    word: Abort = field(default_factory=Abort)
    tell: Callable[[str], None] = lambda why: None

    @property
    def first_rank(self) -> int:
        """The first of this node's ranks."""
        return self.node * self.ranks_per_node

    def agents_store(self) -> Any:
        """Through which the agents of torch elastic meet."""
        return HashStore() if self.line is None else AgentsStore(self.line, self.prefix, self.word)


class AgentsStore:
    """What torch elastic needs of a store, asked through a line: its agents wait for one another in here, and that
    wait ends when a launch does."""

    def __init__(self, line: StoreClient, prefix: str, word: Abort) -> None:
        self._line, self._prefix, self._word = line, prefix, word
        self.timeout = timedelta(seconds=300)

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def set(self, key: str, value: str) -> None:
        self._line.ask(lambda store: store.set(self._prefix + key, value), watch=self._watch)

    def add(self, key: str, amount: int) -> int:
        return int(self._line.ask(lambda store: store.add(self._prefix + key, amount), watch=self._watch))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = (timeout or self.timeout).total_seconds()
        mine = [self._prefix + key for key in keys]
        # A thread that still waited in the store when node 0 ends would abort the process with it.
        if not self._line.there(*mine, watch=self._watch, timeout_s=seconds):
            raise RuntimeError(f"no other agent came within {seconds:g} s")

    def _watch(self) -> None:
        if self._word.why is not None:
            raise RuntimeError(f"the launch ends: {self._word.why}")
