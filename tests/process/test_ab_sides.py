"""Variants of `ab` in real processes: refused ones, a killed one, and a whole comparison."""

import json
import os
import re
import select
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

from guard import GUARD_S
from parabench.ab.variant import VariantProcess, read_variant, running
from parabench.analysis.compare.gate import compare, the_verdict
from parabench.analysis.compare.sides import side_of
from parabench.analysis.session import select_session
from parabench.cluster.connection import PROTOCOL
from parabench.errors import UsageError
from parabench.store.database import SCHEMA_VERSION
from parabench.store.results import load
from paths import ROOT
from process_helpers import end, left_of, start_ab

# -- the connection to a variant ---------------------------------------------------------------------------------------


FITS = {"protocol": PROTOCOL, "schema": SCHEMA_VERSION, "package": "/lib/parabench"}


def answers(**values: object) -> str:
    return f"line.send(Reply({ {**FITS, 'version': '0.0.9', **values}!r}))"


def scripted(folder: Path, does: str) -> str:
    """Return a virtual environment whose `python` is a script that receives one request and executes `does`."""
    python = folder / "scripted" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"#!{sys.executable}\nimport socket, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from parabench.cluster.connection import Connection, Reply\n"
        f"line = Connection(socket.socket(fileno=int(sys.argv[-1])))\nline.receive()\n{does}\n"
    )
    python.chmod(0o755)
    return str(python.parents[1])


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (answers(protocol=0), f"is parabench 0.0.9 with protocol 0, and this one has {PROTOCOL}"),
        (
            "print('it hurts', file=sys.stderr); sys.exit(7)",
            f"ended with exit code 7: it hurts; that variant needs a parabench whose `ab` speaks protocol {PROTOCOL}",
        ),
        (answers(), "has a parabench, but another one answered, from /lib/parabench; see what"),
    ],
)
def test_identify_refuses_variants_that_do_not_fit(tmp_path: Path, does: str, why: str) -> None:
    (tmp_path / "tree" / "parabench").mkdir(parents=True)
    (tmp_path / "tree" / "parabench" / "__init__.py").touch()
    variant = read_variant("b", f"{scripted(tmp_path, does)} {tmp_path / 'tree'}")
    named = pytest.raises(UsageError, match=re.escape(f"the candidate ({tmp_path}/scripted {tmp_path}/tree) {why}"))
    with running([variant], lambda side, told: None) as (side,), named:
        side.identify()
    assert not psutil.pid_exists(side.process.pid)


def test_killed_variant_is_reported_by_role() -> None:
    variant = VariantProcess(read_variant("b", "OMP_NUM_THREADS=2"), lambda name, progress: None)
    variant.process.kill()
    with pytest.raises(UsageError, match=r"the candidate \(OMP_NUM_THREADS=2\) ended by SIGKILL"):
        variant.identify()
    variant.wait()


# -- real sides -----------------------------------------------------------------------------------------------------

ROUNDS = 4

# A custom model with exact step times: its clock advances only by the variant's seconds per step, times TIMES. In each
# forward pass a rank holds a lock, and raises BlockingIOError if the other variant is in a forward pass.
OWN = """
import fcntl, os, sys, time
from pathlib import Path

import torch
from torch import nn

from parabench import Model
from parabench.probes import step_clock

print("libraries talk")

now = time.perf_counter()

def reading():
    global now
    now += 1e-6
    return now

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        global now
        now += {seconds} * float(os.environ.get("TIMES", "1"))
        if "RANK" in os.environ:
            with open("lock" + os.environ["RANK"], "w") as own:
                fcntl.flock(own, fcntl.LOCK_EX)
                for path in Path("../slow" if Path.cwd().name == "fast" else "../fast").glob("lock?"):
                    with path.open() as other:
                        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
                time.sleep(0.002)
        return self.linear(x)

def batch(n, generator):
    return torch.randn(n, 4, generator=generator), torch.zeros(n, dtype=torch.long)

def model():
    if "RANK" in os.environ:
        step_clock.perf_counter = reading
        Path("noted").write_text(repr([sys.prefix, os.environ.get("OMP_NUM_THREADS")]))
    return Model(module=Slow(), loss=nn.CrossEntropyLoss(), batch=batch)
"""
# It is in the working directory of ab, not in the folders of the variants.
QUESTION = """\"\"\"Is it slow?\"\"\"
from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", world_size=2)
PROTOCOL = Protocol(warmup=2, steps=3, launches=1, instrumented=0)
"""


def checkout(folder: Path, seconds: float) -> Path:
    folder.mkdir()
    (folder / "own.py").write_text(OWN.format(seconds=seconds))
    return folder


def start(here: Path, *options: str) -> subprocess.Popen[str]:
    (here / "question.py").write_text(QUESTION)
    return start_ab(here, "question.py", "--model", "own:model", *options)


def test_ab_runs_variants_with_different_code_and_python(tmp_path: Path) -> None:
    """Steps of 20 ms against 30 ms, which TIMES doubles, have a ratio of 3.

    Each variant has one separate launch and two interleaved ones.
    """
    fast, slow = checkout(tmp_path / "fast", 0.02), checkout(tmp_path / "slow", 0.03)
    new = tmp_path / "new"
    venv.create(new, symlinks=True)
    (site,) = new.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in sys.path if path.endswith("site-packages")]
    lines.append("import site; print('this python greets')")
    (site / "all_of_ours.pth").write_text("\n".join(lines))

    process = start(
        tmp_path,
        *("--baseline", "fast", "--candidate", "slow new TIMES=2 OMP_NUM_THREADS=3"),
        *("--launches", "2", "--rounds", str(ROUNDS), "--alpha", "0.05"),
    )
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 1, output
    assert "libraries talk" not in output
    assert "this python greets" not in output
    told = "a: {0}/fast\nb: TIMES=... OMP_NUM_THREADS=3 {0}/new {0}/slow\nRegression: "
    assert told.format(tmp_path) in output
    assert output.endswith("again:  parabench compare results/results.db@ab-a results/results.db@ab-b --alpha 0.05\n")
    assert (fast / "noted").read_text() == repr([sys.prefix, os.environ.get("OMP_NUM_THREADS")])
    assert (slow / "noted").read_text() == repr([str(new), "3"])

    results = load(tmp_path / "results" / "results.db")
    outcome = compare(side_of(results, "ab-a"), side_of(results, "ab-b", "candidate"), alpha=0.05)
    (row,) = outcome.tables["cases"].itertuples()
    assert row.outcome == "slower"
    assert row.ratio == pytest.approx(3, rel=0.01)
    assert the_verdict(outcome)["paired"]
    candidate = select_session(results, "ab-b")
    assert candidate.environment["env"]["OMP_NUM_THREADS"] == "3"
    assert candidate.interleaved["setting"] == "TIMES=... OMP_NUM_THREADS=3 new slow"
    assert candidate.argv[5:9] == ["--baseline", "fast", "--candidate", candidate.interleaved["setting"]]
    assert (tmp_path / "results" / "report.html").exists()
    assert "2 launches per variant" in output

    label = dict(zip(results.session["id"], results.session["label"], strict=True))
    there = {
        (label[row.session_id][-1], row.repetition): json.loads(row.facts).get("turns", {})
        for row in results.launch.itertuples()
        if row.repetition >= 0 and row.status == "ok"
    }
    assert there.keys() == {(side, repetition) for side in "ab" for repetition in (0, 1, 2)}
    for repetition in (1, 2):
        a, b = (there[side, repetition]["pair"]["first"] for side in "ab")
        assert a == [not each for each in b]
        assert (len(a), sum(a)) == (ROUNDS, ROUNDS / 2)


@pytest.mark.slow  # tests/faults kills drivers of runs in `make test`
def test_variants_end_when_ab_is_killed(tmp_path: Path) -> None:
    checkout(tmp_path / "fast", 0.0)
    os.mkfifo(tmp_path / "fast" / "noted")
    pipe = os.open(tmp_path / "fast" / "noted", os.O_RDONLY | os.O_NONBLOCK)
    process = start(tmp_path, "--baseline", "fast", "--candidate", "fast TIMES=2")
    try:
        assert select.select([pipe], [], [], GUARD_S)[0]  # a rank of a variant has started
        family = psutil.Process(process.pid).children(recursive=True)
    finally:
        end(process)
        os.close(pipe)
    assert left_of(family) == []
