"""Asking the rendezvous store without ever being stuck: torch's store waits in C++, where no signal and no deadline
reaches it, and when the network is cut every call waits for as long as TCP tries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore, TCPStore

T = TypeVar("T")

# How soon a signal, a word of another node or a deadline is seen by who waits for an answer.
LOOK_S = 0.05
POLL_S = 0.005

# The store's own limit to waiting for a key; who asks has a shorter one, or none.
FOR_EVER = timedelta(days=7)
CONNECT = timedelta(seconds=10)


class StoreLost(Exception):
    """The store does not answer: its node is gone, or the way to it."""


def nothing() -> None:
    """What a wait watches that watches nothing."""


class StoreClient:
    """A connection to the store with a thread of its own that makes the calls. One that is stuck is left behind."""

    def __init__(self, address: str, port: int, prefix: str) -> None:
        self.where = f"{address}:{port}"
        self._asked: SimpleQueue[tuple[Callable[[Any], Any], SimpleQueue[tuple[bool, Any]]] | None] = SimpleQueue()
        self._make = partial(connect, address, port, prefix, FOR_EVER)
        threading.Thread(target=self._serve, name="parabench line", daemon=True).start()

    def ask(self, do: Callable[[Any], T], *, watch: Callable[[], None] = nothing, timeout_s: float | None = None) -> T:
        """What `do(store)` returns. `watch` is called while nothing has come, and may raise. Raises Lost."""
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._asked.put((do, answer))
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                well, value = answer.get(timeout=LOOK_S)
            except Empty:
                watch()
                if until is not None and time.monotonic() > until:
                    raise StoreLost(f"{self.where} has not answered for {timeout_s:g} s") from None
                continue
            if well:
                return value  # type: ignore[no-any-return]
            raise StoreLost(
                f"{self.where} is gone: {str(value).splitlines()[0] if str(value) else type(value).__name__}"
            )

    def there(self, *keys: str, watch: Callable[[], None] = nothing, timeout_s: float) -> bool:
        """Whether all keys are there, or come in time. Nothing waits in the store for it. Raises Lost."""
        until = time.monotonic() + timeout_s
        while not self.ask(lambda store: store.check(list(keys)), watch=watch):
            if time.monotonic() > until:
                return False
            watch()
            time.sleep(POLL_S)
        return True

    def end(self) -> None:
        self._asked.put(None)

    def _serve(self) -> None:
        store: Any = None
        while (asked := self._asked.get()) is not None:
            do, answer = asked
            try:
                store = store or self._make()
                answer.put((True, do(store)))
            except Exception as error:
                answer.put((False, error))


def connect(address: str, port: int, prefix: str, timeout: timedelta) -> Any:
    """A client of the store at `address`, whose keys all begin with `prefix`."""
    store = TCPStore(address, port, None, False, CONNECT, wait_for_workers=False)
    store.set_timeout(timeout)
    return PrefixStore(prefix, store)
