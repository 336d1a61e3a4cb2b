"""The program of GPU checks: what a check may do to the program, and what its reader gets; no GPU needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import check as apart
from benchmarks.gpu.check import Check, Seen, Verdict, run_apart
from paths import ROOT

CPU = torch.device("cpu")
GPU_HERE = torch.cuda.is_available()


def checked(name: str, limit_s: float = 60.0) -> Check:
    return Check(name, "nothing", limit_s, lambda device: Seen.judged("fine", True))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stand-in for the process of a check: what Python runs in it, in place of the program."""
    script = [""]
    run = subprocess.run
    monkeypatch.setattr(apart.subprocess, "run", lambda args, **kept: run([sys.executable, "-c", script[0]], **kept))
    return script


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import os; os.abort()", "ended with -6; it said nothing"),
        ("print('a'); raise SystemExit('no such device')", "ended with 1; it said: a | no such device"),
    ],
)
def test_a_check_that_breaks_has_failed_and_its_last_words_are_kept(script: str, text: str, command: list[str]) -> None:
    command[0] = script
    assert run_apart(checked("any"), CPU) == Seen(text, Verdict.FAILED)


def test_a_check_that_does_not_end_is_ended(command: list[str]) -> None:
    command[0] = "print('began', flush=True); import threading; threading.Event().wait()"
    seen = run_apart(checked("any", limit_s=3.0), CPU)
    assert (seen.verdict, seen.text) == (Verdict.FAILED, "not over after 3 s; it said: began")


def test_what_libraries_print_around_a_result_is_passed_over(command: list[str]) -> None:
    told = json.dumps({"text": "5 of 5", "verdict": "passed", "numbers": {"n": 5}})
    command[0] = f"print('warning'); print('parabench-check: ' + {told!r}); print('bye')"
    assert run_apart(checked("any"), CPU) == Seen("5 of 5", Verdict.PASSED, {"n": 5})


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [("passed passed", 0), ("passed not_run", 0), ("failed passed", 1)],
)
def test_exit_code_table_and_json(verdicts: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [Seen(f"seen [{v}]", Verdict[v.upper()], {"v": v}) for v in verdicts.split()]
    names = [f"check{i}" for i in range(len(seen))]
    monkeypatch.setattr(program, "CHECKS", tuple(Check(n, "much", 1.0, lambda _: None, True) for n in names))
    monkeypatch.setattr(program, "run_apart", lambda check, device: seen[names.index(check.name)])
    ended = CliRunner().invoke(program.main, ["--rehearse", "--json", str(tmp_path / "r.json")])
    assert ended.exit_code == code, ended.output
    assert all(each.text in ended.output for each in seen)
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["device"] == "cpu"
    assert [(c["check"], c["verdict"], c["numbers"]) for c in written["checks"]] == [
        (name, each.verdict, each.numbers) for name, each in zip(names, seen, strict=True)
    ]


@pytest.mark.skipif(GPU_HERE, reason="there is a GPU here")
def test_without_a_gpu_the_reason_is_said() -> None:
    ended = CliRunner().invoke(program.main, [])
    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"Error: torch {torch.__version__} ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--only", "clock"], "Error: no check is named 'clock'; --list names them\n"),
        (
            ["--rehearse", "--json", "/no/such/r.json"],
            "Error: --json '/no/such/r.json': there is no folder '/no/such'; make it first\n",
        ),
    ],
)
def test_wrong_words_are_refused_before_anything_runs(given: list[str], message: str) -> None:
    ended = CliRunner().invoke(program.main, given)
    assert (ended.exit_code, ended.stderr) == (2, message)


def test_names_are_unique_and_all_checks_are_listed() -> None:
    names = [check.name for check in program.CHECKS]
    assert len(names) == len(set(names)) > 15
    listed = CliRunner().invoke(program.main, ["--list"]).output
    assert [line.partition(":")[0] for line in listed.splitlines()] == names


def test_the_program_does_not_need_ruptures() -> None:
    script = (
        "import sys; sys.modules.update(ruptures=None); "
        "import benchmarks.gpu.__main__ as program; print(len(program.CHECKS))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == len(program.CHECKS)


@pytest.mark.parametrize("name", ["imports", "fork-server", pytest.param("gloo-collectives", marks=pytest.mark.slow)])
def test_checks_that_the_cpu_can_show_pass_on_it(name: str) -> None:
    check = next(check for check in program.CHECKS if check.name == name)
    seen = check.run(CPU)
    assert seen.verdict is Verdict.PASSED, seen.text
