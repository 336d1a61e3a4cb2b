"""What a script may ask of every command: JSON alone, silence, no escape codes; and what a terminal shows instead."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import fake_results as fake
from command_line import parabench
from docs.site import schemas
from fake_launch import FakeLauncher
from fake_sides import Lab
from guard import GUARD_S
from parabench.cluster.topology import Participants
from parabench.store.record import Failure, Status
from paths import FIXTURES, ROOT

SUITE = """\
'''Which is fastest?'''
from parabench import Protocol, sweep

CASES = sweep(strategy=("single", "ddp"), world_size=2, device="cpu")
PROTOCOL = Protocol(warmup=2, steps=4, launches=2, instrumented=0)
"""
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    """Return a fake launcher, in a folder with a suite and a store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SUITE)
    for name in ("rich", "new"):
        fake.rich(tmp_path / f"{name}.db")
    found = FakeLauncher(lambda case: 0.010 if case.strategy == "ddp" else 0.020)
    monkeypatch.setattr(Participants, "executor", lambda self: found)
    return found


def valid(text: str, schema: str) -> Any:
    told = json.loads(text)
    jsonschema.validate(told, schemas.schema(schema), jsonschema.Draft202012Validator)
    return told


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        (("run", "mine.py"), "best"),
        (("best", "rich.db"), "best"),
        (("doctor",), "doctor"),
        (("list",), "list"),
        (("compare", "rich.db", "new.db"), "compare"),
        (("compare", "rich.db", "new.db", "--across-hardware"), "compare-machines"),
        (("history", "rich.db"), "history"),
    ],
)
def test_json_is_alone_on_stdout_and_fits_its_schema(launcher: FakeLauncher, words: Any, schema: str) -> None:
    done = parabench(*words, "--json", "-")
    assert done.exit_code in (0, 3), done.stderr
    assert valid(done.stdout, schema)


def test_run_writes_the_json_of_best(launcher: FakeLauncher) -> None:
    alone = parabench("run", "mine.py", "--json", "-")
    assert alone.exit_code == 0
    assert alone.stdout == parabench("best", "--json", "-").stdout
    assert "] repetition 1 of 2" in alone.stderr
    assert "report: parabench-results/report.html" in alone.stderr
    written = parabench("run", "mine.py", "--json", "answer.json", "--out", "other")
    assert written.stdout.endswith("json:   answer.json\n")
    assert valid(Path("answer.json").read_text(), "best")["tables"]["candidates"][0]["label"] == "ddp native, 2 ranks"


def test_a_quiet_run_tells_its_answer_alone(launcher: FakeLauncher) -> None:
    loud, quiet = parabench("run", "mine.py"), parabench("run", "mine.py", "--quiet", "--out", "other")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert quiet.stdout.startswith("Fastest: ddp native, 2 ranks: 10.")
    answer = loud.stdout.partition("Fastest")[2].partition("store: ")[0]
    assert quiet.stdout == f"Fastest{answer}"
    silent = parabench("run", "mine.py", "-q", "--json", "answer.json", "--out", "third")
    assert (silent.exit_code, silent.output) == (0, "")


def test_quiet_run_writes_failures_to_standard_error(launcher: FakeLauncher) -> None:
    launcher.failing["ddp"] = (Status.CRASHED, Failure("ended by SIGKILL", 1, "SIGKILL"))
    done = parabench("run", "mine.py", "-q")
    assert done.exit_code == 1
    assert [re.sub(r"^\[./.\] ", "", line) for line in done.stderr.splitlines()] == [
        f"repetition {repetition} of 2, ddp native, 2 ranks: crashed: rank 1: ended by SIGKILL" for repetition in (1, 2)
    ]
    assert "crashed" not in done.stdout


def test_a_quiet_gate_says_its_verdict_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch)
    lab.step_s["b"] = 0.015
    words = ["ab", "quick", "--baseline", "", "--candidate", "X=1", "--launches", "3", "--steps", "4", "--rounds", "4"]
    words += ["--set", "strategy=ddp", "--set", "world_size=2", "--set", "algorithm=native", "--set", "bucket_mib=25"]
    said = parabench(*words, "-q", "--out", tmp_path / "out")
    assert (said.exit_code, said.stderr) == (1, "")
    assert said.stdout.startswith("Regression: 1 configuration slower (")
    assert "store:" not in said.stdout
    silent = parabench(*words, "-q", "--out", tmp_path / "other", "--json", tmp_path / "verdict.json")
    assert (silent.exit_code, silent.output) == (1, "")
    assert valid((tmp_path / "verdict.json").read_text(), "compare")["tables"]["verdict"][0]["verdict"] == "regression"


def test_quiet_commands_print_only_the_answer(launcher: FakeLauncher) -> None:
    assert parabench("report", "rich.db", "-q").output == ""
    assert Path("report.html").is_file()
    assert parabench("export", "rich.db", "--bencher", "-q").output == ""
    assert json.loads(parabench("export", "rich.db", "--bencher", "-q", "-o", "-").stdout)
    assert parabench("best", "rich.db", "-q").output == parabench("best", "rich.db").output != ""
    assert parabench("best", "rich.db", "-q", "--json", "best.json").output == ""
    assert valid(Path("best.json").read_text(), "best")
    wrong = parabench("best", "no.db", "-q")
    assert (wrong.exit_code, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


# A run of fake launches in a separate process.
FAKE_RUN = """
from fake_launch import FakeLauncher
from parabench.cli import main
from parabench.cluster.topology import Participants
Participants.executor = lambda self, launcher=FakeLauncher(): launcher
main(["run", "mine.py"], prog_name="parabench")
"""


def environment() -> dict[str, str]:
    gone = {"NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"}
    paths = os.pathsep.join([str(ROOT), str(FIXTURES)])
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return kept | {"PYTHONPATH": paths, "COLUMNS": "120", "TERM": "xterm-256color"}


def read(terminal: int) -> Iterator[bytes]:
    while select.select([terminal], [], [], GUARD_S)[0]:
        try:
            yield os.read(terminal, 1 << 16)
        except OSError:  # all others have closed it
            return


def test_a_terminal_has_a_bar_with_the_time_left(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SUITE)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", FAKE_RUN]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b"".join(read(ours)).decode()
    os.close(ours)
    assert process.returncode == 0, said
    plain = CODES.sub("", said)
    assert re.search(r"━+ +4/4 +\d:\d\d:\d\d", plain), plain
    assert "\nFastest: " in plain.replace("\r", "")
    assert re.search(r"\x1b\[[0-9;]*m", said)  # colors


def test_a_pipe_has_plain_lines(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SUITE)
    run = [sys.executable, "-c", FAKE_RUN]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.findall(r"^\[\d/4\]", done.stdout, re.MULTILINE) == [f"[{number}/4]" for number in range(1, 5)]
