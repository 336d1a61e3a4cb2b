"""Being asked to stop: one exception for Ctrl-C, SIGTERM and a closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The driver was asked to stop; when this is raised no rank is left."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)


@contextmanager
def stop_signals() -> Iterator[None]:
    """Inside, a stop signal raises Interrupted; a second one is ignored while the first is cleaned up."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    with signals_restored():
        for each in STOP_SIGNALS:
            signal.signal(each, stop)
        yield


@contextmanager
def signals_restored() -> Iterator[None]:
    """Put back whatever handlers the block replaces."""
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
