"""A stop signal is never lost, wherever it comes."""

from __future__ import annotations

import os
import signal
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
def test_signal_during_a_deletion_stops(times: int) -> None:
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


def test_signal_during_an_import_is_not_an_import_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stopping.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Interrupted, match="SIGTERM"), stop_signals():
        load({}, "probe", "stopping:Probe")
