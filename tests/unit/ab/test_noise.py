"""`noise`: the end of its pilot, its answer and its files; launches are faked."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from answers_helpers import noise_of
from command_line import parabench
from docs.site.schemas import schema
from fake_sides import Lab
from parabench.ab import driver
from parabench.ab.driver import MOST_PAIRS, TURNS, run_noise
from parabench.session.request import Request
from parabench.signals import STOPPED
from paths import ROOT

AXES = ("strategy=ddp", "world_size=2", "algorithm=native", "bucket_mib=1,2,25")
SCHEMA = schema("noise")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    # Each reading of the clock is 10 s after the previous one.
    monkeypatch.setattr(driver, "monotonic", itertools.count(0, 10).__next__)
    monkeypatch.chdir(tmp_path)
    return Lab(tmp_path, monkeypatch)


def asked(lab: Lab, minutes: float = 4.0, **fields: Any) -> tuple[int, Any]:
    """Return the exit code and the answer of `run_noise`."""
    given = {"suite": "quick", "axes": AXES, "steps": 4, "argv": ["parabench", "noise"], "out": lab.folder / "out"}
    found = lab.captured(lambda console: run_noise(Request.of(**given | fields), minutes, console))
    answer = None if found is None else noise_of(found)
    return STOPPED if answer is None else answer.exit_code, answer


def test_noise_imports_a_model_from_the_working_directory(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    model = (ROOT / "examples/own_model.py").read_text()
    (lab.folder / "here_only.py").write_text(model)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(lab.folder))])
    monkeypatch.setattr(driver, "measure", lambda *_: None)
    ended = parabench("noise", "quick", "--model", "here_only:factory", "--set", "strategy=ddp", "--out", "out")
    assert (ended.exit_code, ended.output) == (STOPPED, "")


def test_noise_measures_until_its_time_is_over(lab: Lab) -> None:
    code, answer = asked(lab)
    assert code == 0, lab.output
    # 10 s each, and the time before the first look.
    assert (answer.pairs, answer.rounds, answer.cases) == (23, TURNS["cpu"] // 3, 3)
    assert "Here `ab` of quick detects " in lab.output
    assert "in 3 minutes, " in lab.output
    assert f"23 pairs of launches of {answer.rounds} rounds, 3 configurations: pairs of one differ by" in lab.output
    gate = next(each for each in answer.needs if each.change == 0.02)
    options = f"--tolerance 2% --launches {gate.gate_launches} --rounds {answer.rounds}"
    assert f"Options of a gate: {options}" in lab.output
    assert f"store: {lab.folder / 'out' / 'results.db'}" in lab.output
    assert {label for label, _, _ in lab.launches()} == {"noise-a", "noise-b"}
    # The store answers again, in text and JSON.
    ended = parabench("noise", "--from", lab.folder / "out")
    assert ended.exit_code == 0
    assert ended.output.splitlines() == [line for line in lab.output.splitlines() if line in ended.output.splitlines()]
    assert ended.output.startswith("Here `ab` of quick detects ")
    document = json.loads(parabench("noise", "--from", f"{lab.folder / 'out'}@noise-b", "--json", "-").stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["sentences"][0] == ended.output.splitlines()[0]
    assert document["tables"]["pilot"][0]["pairs"] == answer.pairs
    assert [each["change"] for each in document["tables"]["seen"]] == [each.change for each in answer.seen]


def test_noise_ends_after_the_requested_pairs(lab: Lab) -> None:
    _, answer = asked(lab, minutes=1e3)
    assert answer.pairs == MOST_PAIRS
    _, answer = asked(lab, minutes=1e3, launches=3, rounds=6, label="mine")
    assert (answer.pairs, answer.rounds) == (3, 6)
    assert {label for label, _, _ in lab.launches()} >= {"mine-a", "mine-b"}


def test_noise_resumes_after_a_stop(lab: Lab) -> None:
    lab.interrupt_at = 9
    assert asked(lab) == (STOPPED, None)
    assert f"resume with: parabench noise --resume --minutes 4 --out {lab.folder / 'out'}" in lab.output
    lab.interrupt_at = None
    code, answer = asked(lab, suite=None, axes=(), steps=None, resume=True)
    assert code == 0, lab.output
    assert answer.pairs > 20


def test_short_pilot_reports_the_pairs_that_it_needs(lab: Lab) -> None:
    code, answer = asked(lab, minutes=0.5)
    assert (code, answer.pairs, answer.seen) == (3, 2, [])
    assert "The pilot is too short: it has 2 pairs of launches, and an answer" in lab.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--minutes", "0"), "0.0 is not in the range"),
        (("qiuck",), "did you mean 'quick'?"),
        (("--json", "."), "'.' is a directory"),
        (("quick", "--from", "out"), "SUITE has no effect with --from"),
        (("--minutes", "3", "--from", "out"), "--minutes has no effect with --from"),
        (("--resume", "--out", "none"), "none/results.db does not exist, so it holds no ab to resume"),
    ],
)
def test_noise_refuses_wrong_input(lab: Lab, arguments: tuple[str, ...], why: str) -> None:
    ended = parabench("noise", *arguments)
    assert (ended.exit_code, why in ended.stderr) == (2, True), ended.output
    assert lab.log == []
    assert not any(lab.folder.iterdir())
