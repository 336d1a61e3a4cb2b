"""Crashed ranks: the reason that C++ wrote before the process aborted is kept and shown."""

from pathlib import Path

import numpy as np
import pytest

from parabench.launch.outcome import WHY_SIZES_DIFFER, diagnose
from parabench.launch.processes import ProcessOutcome, log_tail
from parabench.launch.results import NodeResult, RankReport
from parabench.store.record import Status

REASON = "[enforce fail at gloo/transport/tcp/pair.cc:446] ptr. Connection was not there"
SIZES = (
    "[enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 180 vs 144. Received data size "
    "doesn't match expected size. Is there a distributed collective mismatch in your code?"
)
TERMINATE = f"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  {REASON}"


def tail_of(tmp_path: Path, text: str) -> str:
    log = tmp_path / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(text)
    return log_tail(tmp_path, 1)


def test_log_tail_keeps_the_reason_before_long_stacks(tmp_path):
    stacks = "".join(f'  File "x.py", line {number} in f\n' for number in range(100))
    tail = tail_of(tmp_path, 50 * "early\n" + f"{TERMINATE}\nFatal Python error: Aborted\n\n{stacks}").splitlines()
    assert f"  what():  {REASON}" in tail
    assert tail[-1] == '  File "x.py", line 99 in f'
    assert len(tail) == 10 + 1 + 1 + 40


@pytest.mark.parametrize("lines", [0, 3, 39, 40, 41])
def test_log_tail_is_the_last_lines_without_a_fatal_error(tmp_path, lines):
    written = [f"line {number}" for number in range(lines)]
    assert tail_of(tmp_path, "\n".join(written)).splitlines() == written[-40:]


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (f"{TERMINATE}\nFatal Python error: Aborted\n\nThread 0x1 (most recent call first):", f"SIGABRT: {REASON}"),
        (f"  what():  {SIZES}\nFatal Python error: Aborted\n", f"SIGABRT: {WHY_SIZES_DIFFER}"),
        ("", "SIGSEGV"),
        ("a warning\nFatal Python error: Segmentation fault\n\n", "SIGSEGV"),
    ],
)
def test_crash_message_has_the_reason_of_an_abort(tail, message):
    signal = message.partition(":")[0]
    node = NodeResult(
        node=0, host="h", first_rank=0, began_s=0.0, outcome=ProcessOutcome(ok=False, rank=1, signal=signal),
        reports=[RankReport(rank=rank, reported=False) for rank in range(2)], marks=[np.full((1, 1), np.nan)] * 2,
        tails=["", tail],
    )  # fmt: skip
    status, failure = diagnose([node], str, 20.0)
    assert (status, failure.message) == (Status.CRASHED, f"ended by {message}")
