"""Variants of `ab`: their words, and the order of their launches, which are faked."""

import json
import os
import re
import shlex
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from fake_sides import AXES, Lab
from parabench.ab.agent import INTERLEAVED, VariantAgent
from parabench.ab.driver import AbRequest, recorded_command
from parabench.ab.variant import read_variant
from parabench.analysis.session import select_session
from parabench.cli import main
from parabench.cluster.connection import request
from parabench.errors import UsageError
from parabench.launch.spec import LaunchSpec
from parabench.session.request import Request
from parabench.session.session import run_session
from parabench.signals import STOPPED
from parabench.store.record import Failure, Launch, Status
from parabench.store.results import load

# -- words of a variant ---------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a virtual environment (only its python), two folders and a file in the working directory."""
    (tmp_path / "new" / "bin").mkdir(parents=True)
    (tmp_path / "new" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "my code").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_read_variant_reads_variables_environment_and_folder(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/before")
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("KEPT", "yes")
    side = read_variant("b", "new OMP_NUM_THREADS=2 'TOKEN=a b=c' 'my code'")
    assert side.python == str(places / "new" / "bin" / "python")
    assert side.folder == places / "my code"
    assert side.environment().items() >= {
        "OMP_NUM_THREADS": "2", "TOKEN": "a b=c", "KEPT": "yes", "PYTHONPATH": f"{places / 'my code'}:/before",
        "PATH": f"{places / 'new' / 'bin'}:/usr/bin", "VIRTUAL_ENV": str(places / "new"),
    }.items()  # fmt: skip
    # The results database has neither paths nor values that may be secret.
    assert side.recorded() == "OMP_NUM_THREADS=2 TOKEN=... new 'my code'"
    assert side.shown() == f"OMP_NUM_THREADS=2 TOKEN=... {places}/new '{places}/my code'"


def test_read_variant_returns_this_process_when_empty() -> None:
    side = read_variant("a", "")
    assert (side.python, side.folder, side.recorded()) == (sys.executable, None, "")
    assert side.environment() == dict(os.environ)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("file", "'file' is neither NAME=VALUE nor a folder"),
        ("nowhere", "'nowhere' is neither NAME=VALUE nor a folder"),
        ("2X=3", "'2X=3' is neither NAME=VALUE"),
        ("'my code' other", "my code and other are both folders; give one"),
        ("new new", "new and new are both virtual environments; give one"),
        ("'new", "No closing quotation"),
    ],
)
def test_read_variant_refuses_other_words(places: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_variant("a", text)


def test_recorded_command_has_no_secret(places: Path) -> None:
    texts = {"a": "TOKEN=hush", "b": f"{places}/other"}
    argv = ["parabench", "ab", "--baseline", texts["a"], f"--candidate={texts['b']}", "quick"]
    request = AbRequest(**texts, run=Request.of(suite="quick", argv=argv, out=places), tolerance=0.02, alpha=0.01)
    variants = [read_variant(name, text) for name, text in texts.items()]
    expected = ["parabench", "ab", "--baseline", "TOKEN=...", "--candidate=other", "quick"]
    assert recorded_command(request, variants) == expected


# -- order of launches ----------------------------------------------------------------------------------------------

QUICK = ["ab", "quick", "--baseline", "", "--candidate", "", *(word for axis in AXES for word in ("--set", axis))]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def test_ab_launches_pairs_back_to_back(lab: Lab) -> None:
    assert lab.run(b="TOKEN=hush OMP_NUM_THREADS=2") == 0, lab.output
    cases = 3
    there = lab.launches()
    # Each variant has a reference.
    assert [label for label, _, repetition in there if repetition < 0] == ["ab-a", "ab-b"]
    counted = [each for each in there if each[2] >= 0]
    assert len(counted) == 2 * cases * 3
    for one, other in zip(counted[::2], counted[1::2], strict=True):
        assert one[1:] == other[1:]
        assert {one[0], other[0]} == {"ab-a", "ab-b"}
    results = load(lab.folder / "out" / "results.db")
    base, candidate = (select_session(results, name) for name in ("ab-a", "ab-b"))
    assert base.interleaved["run"] == candidate.interleaved["run"]
    assert [each.interleaved["side"] for each in (base, candidate)] == ["a", "b"]
    assert candidate.interleaved["setting"] == "TOKEN=... OMP_NUM_THREADS=2"
    assert base.finished_utc
    assert candidate.finished_utc
    assert results.launch["position"].max() == cases - 1
    assert "[1/18] repetition 1 of 3, " in lab.output
    assert sorted(each.name for each in (lab.folder / "out").iterdir()) == ["report.html", "results.db"]


def test_ab_fails_when_slower_and_numbers_its_labels(lab: Lab) -> None:
    lab.step_s["b"] = 0.012
    assert lab.run(label="mine") == 1, lab.output
    assert "Regression: 3 configurations slower (" in lab.output
    lab.step_s["b"] = 0.008
    given = [*QUICK, "--launches", "4", "--steps", "4", "--label", "mine", "--out", str(lab.folder / "out")]
    files = [f"--{name}={lab.folder / name}" for name in ("json", "markdown", "html")]
    done = CliRunner().invoke(main, [*given, *files, "--junit", "-"])
    assert done.exit_code == 0, done.output
    # The second pair is compared.
    assert "@mine-2-a " in done.stderr
    document = json.loads((lab.folder / "json").read_text())
    (verdict,) = document["tables"]["verdict"]
    assert (verdict["base"], verdict["candidate"], verdict["exit_code"]) == ("mine-2-a", "mine-2-b", 0)
    assert document["command"] == "ab"
    assert " ".join(document["sentences"]) in (lab.folder / "markdown").read_text()
    assert (lab.folder / "html").read_text().startswith("<!doctype html>")
    assert ElementTree.fromstring(done.stdout).get("tests") == "3"
    assert {label for label, _, _ in lab.launches()} == {"mine-a", "mine-b", "mine-2-a", "mine-2-b"}


def test_resumed_ab_keeps_tolerance_and_alpha(lab: Lab) -> None:
    lab.step_s["b"] = 0.011
    out = ["--out", str(lab.folder / "out")]
    judged = ["--tolerance", "0.2", "--alpha", "0.05", "--json", str(lab.folder / "json")]
    lab.interrupt_at = 7
    stopped = CliRunner().invoke(main, [*QUICK, *["--launches", "3", "--steps", "4", "--rounds", "0"], *out, *judged])
    assert stopped.exit_code == STOPPED, stopped.output
    go_on = shlex.split(stopped.output.rpartition("resume with: ")[2])
    assert go_on == ["parabench", "ab", "--resume", "--baseline", "", "--candidate", "", *judged, *out]
    lab.interrupt_at = None
    done = CliRunner().invoke(main, go_on[1:])
    assert done.exit_code == 0, done.output
    assert json.loads((lab.folder / "json").read_text())["tables"]["verdict"][0]["tolerance"] == 0.2


def test_ab_resumes_with_the_same_variants(lab: Lab) -> None:
    lab.interrupt_at = 7
    assert lab.run(b="TOKEN=hush") == 130
    go_on = f"parabench ab --resume --baseline '' --candidate TOKEN=... --out {lab.folder / 'out'}"
    assert f"stopped by SIGINT; every finished launch is kept; resume with: {go_on}" in lab.output
    before, lab.interrupt_at = lab.launches(), None
    assert len(before) == 7

    # One variant alone cannot be resumed, nor can others.
    with pytest.raises(UsageError, match=r"is one variant of an ab; continue both with .parabench ab --resume"):
        run_session(Request.of(suite=None, argv=[], out=lab.folder / "out", resume=True), Console(file=StringIO()))
    with pytest.raises(UsageError, match=r"the candidate was 'TOKEN=...' and is now 'KEN=...'; resume with the same"):
        lab.run(suite=None, b="KEN=hush", resume=True)
    with pytest.raises(UsageError, match=r"the baseline: the last session in .* has another plan"):
        lab.run(b="TOKEN=hush", steps=5, resume=True)
    assert lab.launches() == before

    assert lab.run(suite=None, b="TOKEN=hush", resume=True) == 0, lab.output
    assert "resuming: 5 of 18 launches are done" in lab.output
    assert "a pair is completed after a stop; drift since then counts as a difference" in lab.output
    there = lab.launches()
    assert there[:7] == before
    assert len(there) == len(set(there)) == 20
    # A complete ab is only compared again.
    assert lab.run(b="TOKEN=hush", resume=True) == 0, lab.output
    assert lab.launches() == there


# -- interleaved launches --------------------------------------------------------------------------------------------

ROUNDS = {"rounds": 4, "launches": 2}


def repetitions(lab: Lab, at: int) -> list[str]:
    """Return the variant and the number of cases of each launch, from the `at`-th on."""
    return [f"{side}{len(labels.split(', 2 ranks')) - 1}" for side, labels, _ in lab.log[at:]]


def test_ab_interleaves_after_one_launch_per_case(lab: Lab) -> None:
    lab.step_s["b"] = 0.0107
    assert lab.run(**ROUNDS) == 1, lab.output
    assert len(lab.log) == 2 + 2 * 3 + 2 * 2
    assert repetitions(lab, 8) == ["a3", "b3", "a3", "b3"]
    there = [each for each in lab.launches() if each[2] >= 0]
    assert len(there) == len(set(there)) == 2 * 3 * 3
    facts = [json.loads(text) for text in load(lab.folder / "out" / "results.db").launch["facts"]]
    pairs = [each["turns"]["pair"] for each in facts if "turns" in each]
    assert len(pairs) == 12
    assert len({each["run"] for each in pairs}) == 1
    # Separate launches are not compared.
    assert "2 launches per variant" in lab.output


def test_ab_interleaves_by_default(lab: Lab) -> None:
    lab.run(rounds=None, launches=None)
    protocol = select_session(load(lab.folder / "out" / "results.db"), "ab-b").plan["protocol"]
    assert protocol.items() >= INTERLEAVED.items()


def test_ab_launches_a_failed_case_separately(lab: Lab) -> None:
    def fails(name: str, spec: LaunchSpec, seen: Launch) -> None:
        if name == "b" and spec.pair and len(spec.cases) == 3:
            # A launch that fails has the case whose turn it was.
            seen.status, seen.failure = Status.CRASHED, Failure("ended by SIGKILL", 0)
            seen.arms = [replace(seen.arms[1], status=Status.CRASHED, failure=seen.failure)]

    lab.befalls = fails
    assert lab.run(**ROUNDS) == 1, lab.output
    # Repetition 2: an interleaved launch of all cases fails, then one of two cases, then the failed case in a.
    # Repetition 3: an interleaved launch of the two others, and the failed case alone.
    assert repetitions(lab, 8)[:5] == ["a3", "b3", "a2", "b2", "a1"]
    assert sorted(repetitions(lab, 13)) == ["a1", "a2", "b1", "b2"]
    there = [each for each in lab.launches() if each[2] >= 0]
    assert len(there) == len(set(there)) == 2 * 3 * 3
    statuses = load(lab.folder / "out" / "results.db").launch["status"].tolist()
    assert statuses.count("crashed") == 1


class OneCaseLess(VariantAgent):
    @request
    def plan(self, /, **fields: Any) -> dict[str, Any]:
        answer = super().plan(**fields)
        gone, *rest = self._planned.plan.cases
        self._planned = replace(self._planned, plan=self._planned.plan.replace(cases=tuple(reversed(rest))))
        del answer["cases"][gone.id]
        answer["skipped"][gone.id] = "this side has no room for it"
        return answer


class OtherSuite(VariantAgent):
    """A variant whose suite has another protocol."""

    @request
    def plan(self, /, **fields: Any) -> dict[str, Any]:
        answer = super().plan(**fields)
        # A field that only one version has is ignored.
        return answer | {"protocol": answer["protocol"] | {"launches": 4, "profile": True, "unheard": 1}}


def test_ab_refuses_variants_with_other_protocols(lab: Lab) -> None:
    lab.sides["b"] = OtherSuite
    why = "launches: 3 in a, 4 in b, profile: False in a, True in b; give --launches, or make both suites equal"
    with pytest.raises(UsageError, match=f"^{re.escape(why)}$"):
        lab.run()
    assert not (lab.folder / "out").exists()


def test_ab_skips_cases_that_one_variant_cannot_run(lab: Lab) -> None:
    lab.sides["b"] = OneCaseLess
    assert lab.run() == 0, lab.output
    assert "in the baseline: the candidate does not run it: this side has no room for it" in lab.output
    results = load(lab.folder / "out" / "results.db")
    plan = select_session(results, "ab-a").plan
    assert (len(plan["cases"]), len(plan["skipped"])) == (2, 1)
    # Both variants launch in the same order, even if one has planned another order.
    assert select_session(results, "ab-b").plan["cases"] == plan["cases"]
