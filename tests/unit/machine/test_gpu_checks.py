"""The program of GPU checks: crashes of checks, and its output. No GPU is needed."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import failing_checks
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import child
from paths import FIXTURES, ROOT


def test_program_reports_each_check_after_a_crash_and_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes run the fixture's checks. The program writes its file when it starts, and after each check."""
    monkeypatch.setattr(program, "CHECKS", failing_checks.CHECKS)
    monkeypatch.setattr(child, "MODULE", "failing_checks")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{FIXTURES}")
    file, verdicts, write = tmp_path / "r.json", list[list[str]](), program.write

    def writing(*args: Any) -> None:
        write(*args)
        verdicts.append([each["verdict"] for each in json.loads(file.read_text())["checks"]])

    monkeypatch.setattr(program, "write", writing)
    ended = CliRunner().invoke(program.main, ["--rehearse", "--json", str(file)])
    assert ended.exit_code == 1, ended.output
    assert verdicts[-1] == ["passed", "passed", "failed", "failed", "passed"]
    assert verdicts[:-1] == [verdicts[-1][:count] + ["not run"] * (5 - count) for count in range(6)]
    found = json.loads(file.read_text())["checks"]
    for number, each in enumerate(found, 1):
        line = f"[{number}/5] {each['check']}: {each['verdict']} after {each['seconds']:.0f} s: {each['text']}"
        assert line in ended.output
    first, second, hanging, crashing, last = (each["text"] for each in found)
    assert first == second != last
    assert first.endswith("[cpu]")
    assert hanging == "not over after 3 s; last output: waiting"
    assert crashing == "its process ended with -6; last output: no such device"
    assert [each["numbers"] for each in found] == [{"n": 5}, {"n": 5}, {}, {}, {"n": 5}]
