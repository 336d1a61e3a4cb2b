"""Real launches of both sides of ab that take turns."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from guard import GUARD_S
from parabench.plan.turns import TurnsProtocol
from parabench.signals import STOPPED
from parabench.store.results import load
from process_helpers import end, end_all, left_of, start_ab

ROUNDS, WARMUP, STEPS = 4, 2, 3

# A model whose passes say when one of the other side's is under way: each holds its rank's lock, and looks at those of
# the other side. At a pass to which only a launch that takes turns comes, `what.py` of its folder is run.
OWN = f"""
import fcntl, os, signal, time
from pathlib import Path

import torch
from torch import nn

from parabench import Model

HERE = Path.cwd()
OTHER = HERE.parent / ("b" if HERE.name == "a" else "a")
RANK = os.environ.get("RANK", "0")
own = open(HERE / f"lock{{RANK}}", "w")

class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        if self.passes == {WARMUP + STEPS + 3} and (HERE / "what.py").exists():
            exec((HERE / "what.py").read_text())
        fcntl.flock(own, fcntl.LOCK_EX)
        for path in OTHER.glob("lock?"):
            with path.open() as other:
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises where the other side is in a pass
        time.sleep(0.002)
        fcntl.flock(own, fcntl.LOCK_UN)
        return self.linear(x)

def batch(n, generator):
    return torch.randn(n, 4, generator=generator), torch.zeros(n, dtype=torch.long)

def model():
    return Model(module=Watched(), loss=nn.CrossEntropyLoss(), batch=batch)
"""
QUESTION = f'''"""Is it slow?"""
from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", world_size=2)
PROTOCOL = Protocol(warmup={WARMUP}, steps={STEPS}, launches=1, instrumented=0)
'''


class Ab:
    """An ab of sides a and b below `here`, one case, a launch of its own and two in turns; `what` befalls side b."""

    def __init__(self, here: Path, what: str = "") -> None:
        self.here = here
        for side in "ab":
            (here / side).mkdir()
            (here / side / "own.py").write_text(OWN)
        if what:
            (here / "b" / "what.py").write_text(what)
        (here / "question.py").write_text(QUESTION)

    def start(self, *options: str) -> subprocess.Popen[str]:
        return start_ab(self.here, *options, "--a", "a", "--b", "b")

    def asked(self, *options: str) -> subprocess.Popen[str]:
        words = ("question.py", "--model", "own:model", "--launches", "2", "--rounds", str(ROUNDS), *options)
        return self.start(*words)

    def launches(self) -> list[tuple[str, int, str, dict[str, Any]]]:
        """(side, block, status, what the facts tell of turns) of the launches that count, in their order."""
        results = load(self.here / "results" / "results.db")
        side = {row.id: row.label[-1] for row in results.session.itertuples()}
        return [
            (side[row.session_id], row.block, row.status, json.loads(row.facts).get("turns", {}))
            for row in results.launch.itertuples()
            if row.block >= 0
        ]


def test_one_side_runs_while_the_other_waits(tmp_path: Path) -> None:
    ab = Ab(tmp_path)
    process = ab.asked()
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode in (0, 1, 3), output
    there = ab.launches()
    assert {status for _, _, status, _ in there} == {"ok"}, output
    assert sorted((side, block) for side, block, _, _ in there) == [
        (side, block) for side in "ab" for block in (0, 1, 2)
    ]
    for block in (1, 2):
        a, b = (turns for _, at, _, turns in sorted(there, key=lambda each: each[0]) if at == block)
        assert a["protocol"] == b["protocol"]
        assert TurnsProtocol(**a["protocol"]).rounds == ROUNDS
        assert a["pair"]["run"] == b["pair"]["run"]
        assert (a["pair"]["side"], b["pair"]["side"]) == ("a", "b")
        assert a["pair"]["first"] == [not each for each in b["pair"]["first"]]
        assert sum(a["pair"]["first"]) == ROUNDS / 2
    assert "2 launches per side" in output


@pytest.mark.slow  # two runs of both sides; tests/unit/ab has what is resumed
def test_turns_that_are_stopped_go_on_where_they_were(tmp_path: Path) -> None:
    ab = Ab(tmp_path, 'Path(HERE / "pipe").write_text("here"); signal.pause()')
    os.mkfifo(tmp_path / "b" / "pipe")
    pipe = os.open(tmp_path / "b" / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    process = ab.asked()
    try:
        assert select.select([pipe], [], [], GUARD_S)[0]
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=GUARD_S)
        assert left_of(family) == []
    finally:
        os.close(pipe)
        end(process)
        end_all(family)
    assert process.returncode == STOPPED, output
    assert [each[:3] for each in sorted(ab.launches())] == [("a", 0, "ok"), ("b", 0, "ok")]
    (tmp_path / "b" / "what.py").unlink()
    process = ab.start("--resume")
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode in (0, 1, 3), output
    assert "resuming: 2 of 6 launches are done" in output
    assert "a pair is completed" not in output
    assert [(side, block) for side, block, *_ in sorted(ab.launches(), key=lambda each: each[:2])] == [
        (side, block) for side in "ab" for block in (0, 1, 2)
    ]
