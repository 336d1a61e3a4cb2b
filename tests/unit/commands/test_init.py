"""`parabench init`: files of a new project, and that the suite was tried before they are there."""

import subprocess
from pathlib import Path

import pytest

from command_line import parabench
from parabench.plan.suite import load_suite
from paths import ROOT

FILES = ["suites/training.py", ".github/workflows/performance.yml", "PERFORMANCE.md"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_written_for_the_model_and_the_suite_is_one(here: Path) -> None:
    done = parabench("init", "--model", "my.module:factory", "--world-size", "4", "--no-trial")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [*FILES, "next: parabench run suites/training.py"]
    suite = load_suite("suites/training.py")
    assert suite.question == "Which configuration of my.module is fastest here, and did a change make it slower?"
    text = (here / "suites/training.py").read_text()
    assert '"model": "my.module:factory", "world_size": 4' in text
    note = (here / "PERFORMANCE.md").read_text()
    assert "$(git rev-parse --short HEAD)" in note
    assert note.count("suites/training.py") == 4
    workflow = (here / FILES[1]).read_text()
    assert workflow == (ROOT / "parabench/commands/templates/github.yml").read_text()
    assert "suite: suites/training.py" in workflow


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_replaced(here: Path, name: str) -> None:
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    done = parabench("init", "--no-trial")
    assert done.exit_code == 2
    assert done.stderr == f"parabench: {name} is in . already; move or remove\n"
    assert path.read_text() == "mine"
    assert sum(each.is_file() for each in here.rglob("*")) == 1


def test_a_suite_that_cannot_run_leaves_no_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 2, stdout="[1/2] a rank has failed\nelse\n")
    monkeypatch.setattr("parabench.commands.init.subprocess.run", lambda *words, **options: failed)
    done = parabench("init", "--model", "nothing:factory", "--world-size", "2")
    assert done.exit_code == 2
    assert done.stdout.splitlines()[1:] == ["[1/2] a rank has failed"]
    assert done.stderr.splitlines()[-1].startswith("parabench: the suite does not run here, and nothing is written; ")
    assert [each for each in here.rglob("*") if each.is_file()] == []


@pytest.mark.parametrize("model", ["gpt-nan", 'a"b:c', "a\nb:c", ""])
def test_init_refuses_what_is_not_a_model(here: Path, model: str) -> None:
    done = parabench("init", "--model", model, "--no-trial")
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert list(here.iterdir()) == []
