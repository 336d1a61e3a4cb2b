"""`ab --series`: decisions, error probabilities and resumed proposals; launches are faked."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from docs.site.schemas import schema
from fake_sides import Lab
from parabench.ab.driver import AbRequest
from parabench.ab.series import Series, read_series, run_series
from parabench.analysis.compare.proposal import MOST_PAIRS, SPENT
from parabench.cli import main
from parabench.errors import UsageError
from parabench.session.request import Request
from parabench.signals import STOPPED

AXES = ("strategy=ddp", "world_size=2", "algorithm=native", "bucket_mib=25")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def propose(lab: Lab, proposal: str = "", **more: Any) -> int:
    fields = {"axes": AXES, "launches": MOST_PAIRS, "steps": 4, "rounds": 4}
    run = Request.of(suite="quick", argv=["parabench", "ab"], out=lab.folder / "series", **fields)
    decided = lab.captured(lambda console: run_series(AbRequest(a="", b=proposal, run=run), console, **more))
    return STOPPED if decided is None else decided.exit_code


def series(lab: Lab) -> Series:
    return read_series(lab.folder / "series")


def test_series_accepts_gains_and_rejects_the_rest(lab: Lab) -> None:
    lab.step_s["b"] = 0.009
    assert propose(lab, "FAST=1") == 0, lab.output
    assert "Proposal 1: accepted: it saves 10% of a step, at least " in lab.output
    lab.step_s["b"] = 0.010
    assert propose(lab) == 1, lab.output
    assert "Proposal 2: rejected: a gain of 1.0% of a step is ruled out." in lab.output
    assert "Series: 2 proposals, 1 accepted; " in lab.output
    lab.step_s["b"] = 0.0103
    assert propose(lab, "SLOW=1") == 1
    assert "Proposal 3: rejected: a configuration is worse: ddp native 25 MiB, 2 ranks slower." in lab.output
    one, two, three = series(lab).proposals
    assert [each.alpha for each in (one, two, three)] == pytest.approx([0.01 / 2, 0.01 / 6, 0.01 / 12])
    assert (one.proposal, one.accept, one.pairs) == ("FAST=...", True, min(SPENT))
    assert one.gain == pytest.approx(0.1, abs=0.002)
    assert 0 < one.at_least < one.low < one.gain < one.high
    assert three.pairs < MOST_PAIRS


def test_series_rejects_a_gain_below_least(lab: Lab) -> None:
    lab.step_s["b"] = 0.00995
    assert propose(lab) == 1, lab.output
    assert "a gain of 1.0% of a step is ruled out" in lab.output
    assert propose(lab, least=0.01) == 1
    with pytest.raises(UsageError, match=r"--least is 0.002, and the series in .* has 0.01"):
        propose(lab, least=0.002)


def test_series_resumes_a_stopped_proposal(lab: Lab) -> None:
    lab.interrupt_at = 7
    assert propose(lab, "ONE=1") == STOPPED
    assert "every finished launch is kept; resume with: the same command" in lab.output
    (open_one,) = series(lab).proposals
    assert (open_one.accept, open_one.pairs) == (None, 0)
    lab.interrupt_at = None
    before = len(lab.log)
    assert propose(lab, "ONE=1") == 1, lab.output
    assert [each.number for each in series(lab).proposals] == [1]
    assert len(lab.log) - before < 2 * series(lab).proposals[0].pairs + 4
    lab.interrupt_at = len(lab.log) + 5
    assert propose(lab, "TWO=1") == STOPPED
    lab.interrupt_at = None
    assert propose(lab, "THREE=1") == 1
    assert [(each.number, each.accept) for each in series(lab).proposals] == [(1, False), (2, None), (3, False)]


def test_series_is_shown_or_refused_when_the_folder_has_none(lab: Lab) -> None:
    folder = str(lab.folder / "series")
    done = CliRunner().invoke(main, ["ab", "--series", folder])
    assert done.exit_code == 2
    assert "holds no series; start one with --baseline VARIANT and --candidate VARIANT" in done.output
    propose(lab, "ONE=1")
    done = CliRunner().invoke(main, ["ab", "--series", folder, "--json", "-"])
    assert done.exit_code == 0
    document = json.loads(done.output)
    jsonschema.validate(document, schema("series"), jsonschema.Draft202012Validator)
    stored = json.loads((lab.folder / "series" / "series.json").read_text())
    assert document["tables"]["proposals"] == stored["proposals"]
    done = CliRunner().invoke(main, ["ab", "--series", folder])
    assert "1       rejected  ONE=..." in done.output
    (lab.folder / "series" / "series.json").write_text("{}")
    done = CliRunner().invoke(main, ["ab", "--series", folder])
    assert (done.exit_code, "is not a series of proposals" in done.output) == (2, True)


def test_series_refuses_options_that_it_ignores(tmp_path: Path) -> None:
    series = ["--series", str(tmp_path)]
    for arguments, line in (
        ([*series, "--tolerance", "1%"], "--tolerance has no effect with --series"),
        ([*series, "--baseline", "", "--candidate", "X=1", "--out", "x"], "--out has no effect with --series"),
        ([*series, "--baseline", ""], "--candidate VARIANT is missing"),
        (["--baseline", "", "--candidate", "X=1", "--least", "1%"], "--least has no effect without --series"),
        (["--baseline", ""], "--candidate VARIANT is missing; give both --baseline and --candidate"),
    ):
        done = CliRunner().invoke(main, ["ab", "quick", *arguments])
        assert (done.exit_code, line in done.output) == (2, True), done.output
