"""How a launch that takes too long is ended."""

from __future__ import annotations

import signal
import threading

import psutil

from guard import GUARD_S
from parabench.launch import processes


def test_a_launch_that_ends_while_it_is_given_up_gets_no_signal(monkeypatch):
    deadline = processes._Deadline(GUARD_S, others={child.pid for child in psutil.Process().children(recursive=True)})
    sent: list[object] = []
    monkeypatch.setattr(signal, "pthread_kill", lambda *told: sent.append(told))

    class EndsLate(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            deadline.over()
            return False

    deadline._over = EndsLate()
    deadline.end("aborted")
    assert (sent, deadline.forced) == ([], False)
