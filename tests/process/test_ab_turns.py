"""Real launches of both sides of ab that take turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from guard import GUARD_S
from parabench.plan.turns import TurnsProtocol
from parabench.store.results import load
from process_helpers import start_ab

ROUNDS, WARMUP, STEPS = 4, 2, 3

# A model whose passes say when one of the other side's is under way: each holds its rank's lock, and looks at those of
# the other side.
OWN = """
import fcntl, os, time
from pathlib import Path

import torch
from torch import nn

from parabench import Model

HERE = Path.cwd()
OTHER = HERE.parent / ("b" if HERE.name == "a" else "a")
RANK = os.environ.get("RANK", "0")
own = open(HERE / f"lock{RANK}", "w")

class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        if "RANK" not in os.environ:  # both sides try the model at the same time
            return self.linear(x)
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


def launches(here: Path) -> list[tuple[str, int, str, dict[str, Any]]]:
    """(side, block, status, what the facts tell of turns) of the launches that count, in their order."""
    results = load(here / "results" / "results.db")
    side = {row.id: row.label[-1] for row in results.session.itertuples()}
    return [
        (side[row.session_id], row.block, row.status, json.loads(row.facts).get("turns", {}))
        for row in results.launch.itertuples()
        if row.block >= 0
    ]


def test_one_side_runs_while_the_other_waits(tmp_path: Path) -> None:
    """One case: a launch of its own on each side, and two in turns."""
    for side in "ab":
        (tmp_path / side).mkdir()
        (tmp_path / side / "own.py").write_text(OWN)
    (tmp_path / "question.py").write_text(QUESTION)
    words = ("question.py", "--model", "own:model", "--launches", "2", "--rounds", str(ROUNDS), "--a", "a", "--b", "b")
    process = start_ab(tmp_path, *words)
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode in (0, 1, 3), output
    there = launches(tmp_path)
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
