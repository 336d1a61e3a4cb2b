"""A stop signal is never lost, wherever it comes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from guard import GUARD_S
from parabench.registry import load
from parabench.signals import Interrupted, stop_signals


class Deleted:
    """Is asked to stop while it is deleted, from where Python lets no exception out."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the handler runs between two instructions
            pass


@pytest.mark.parametrize("times", [1, 2])
def test_what_comes_while_an_object_is_deleted_stops_all_the_same(times: int) -> None:
    lost = []

    def work() -> None:
        for _ in range(times):
            Deleted()
            lost.append(True)
        until = time.monotonic() + GUARD_S
        while time.monotonic() < until:
            time.sleep(0.01)

    with pytest.raises(Interrupted, match="SIGTERM"), stop_signals():
        work()
    assert lost[0]


def test_stop_signal_works_when_a_second_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers are given a signal inside the hook: an exception raised there is lost."""
    sent = []

    class Timer(threading.Timer):
        def start(self) -> None:
            if not sent:
                sent.append(True)
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in range(1000):
                    pass
            super().start()

    def work() -> None:
        Deleted()
        until = time.monotonic() + GUARD_S
        while time.monotonic() < until:
            time.sleep(0.01)

    monkeypatch.setattr("threading.Timer", Timer)
    with pytest.raises(Interrupted, match="SIGTERM"), stop_signals():
        work()
    assert sent


def test_what_comes_while_a_users_module_is_imported_is_no_fault_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stopping.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Interrupted, match="SIGTERM"), stop_signals():
        load({}, "probe", "stopping:Probe")
