"""The program of GPU checks: crashes of checks, and its output. No GPU is needed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import failing_checks
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import child
from benchmarks.gpu.check import REHEARSAL, Check, Outcome, Verdict
from benchmarks.gpu.child import Budget, run_checks
from paths import FIXTURES, ROOT


@pytest.fixture
def _failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes run the fixture's checks."""
    monkeypatch.setattr(child, "MODULE", "failing_checks")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{FIXTURES}")


@pytest.mark.usefixtures("_failing")
def test_run_checks_goes_on_after_a_crash_and_a_hang() -> None:
    ended = list(run_checks(failing_checks.CHECKS, REHEARSAL, Budget(None, time.monotonic())))
    assert [check.name for check, _, _ in ended] == ["first", "second", "hanging", "crashing", "last"]
    first, second, hanging, crashing, last = (outcome for _, outcome, _ in ended)
    assert first == second == Outcome(first.text, Verdict.PASSED, {"n": 5})
    assert first.text.endswith("on cpu")
    assert hanging == Outcome("not over after 3 s; last output: waiting", Verdict.FAILED)
    assert crashing == Outcome("its process ended with -6; last output: no such device", Verdict.FAILED)
    assert last.verdict is Verdict.PASSED
    assert last.text != first.text


@pytest.mark.parametrize(("verdicts", "code"), [("passed passed", 0), ("passed not_run", 0), ("failed passed", 1)])
def test_main_reports_each_check_when_it_ends(
    verdicts: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [Outcome(f"observed [{v}]", Verdict[v.upper()], {"v": v}) for v in verdicts.split()]
    checks = tuple(Check(f"check{i}", "much", 1.0, lambda _: outcomes[0]) for i in range(len(outcomes)))
    file, written = tmp_path / "r.json", []

    def run(*_: object) -> Iterator[tuple[Check, Outcome, float]]:
        for check, outcome in zip(checks, outcomes, strict=True):
            written.append(json.loads(file.read_text()))
            yield check, outcome, 1.25

    monkeypatch.setattr(program, "CHECKS", checks)
    monkeypatch.setattr(program, "run_checks", run)
    ended = CliRunner().invoke(program.main, ["--rehearse", "--json", str(file)])
    assert ended.exit_code == code, ended.output
    written.append(json.loads(file.read_text()))
    for number, report in enumerate(written):
        found = [(each["check"], each["verdict"], each["seconds"], each["numbers"]) for each in report["checks"]]
        assert found == [
            (check.name, outcome.verdict, 1.25, outcome.numbers) if at < number else (check.name, "not run", None, {})
            for at, (check, outcome) in enumerate(zip(checks, outcomes, strict=True))
        ]
    for number, (check, outcome) in enumerate(zip(checks, outcomes, strict=True), 1):
        line = f"[{number}/2] {check.name}: {outcome.verdict} after 1 s: {outcome.text}"
        assert line in ended.output
