"""The workflow for GitHub and the page about CI: their shape, their shell, and that their commands are understood."""

import os
import re
import shlex
import subprocess
from string import Template

import pytest
import yaml

from command_line import command_of
from parabench.cli import main
from paths import DOCS, ROOT

WORKFLOW = ROOT / "examples" / "github-gate.yml"
PAGE = DOCS / "how-to/ci.md"


# The keys of a job in GitHub's workflow syntax. BaseLoader keeps `on` a word.
def workflow():
    return yaml.load(WORKFLOW.read_text(), Loader=yaml.BaseLoader)


def steps():
    return [(name, step) for name, job in workflow()["jobs"].items() for step in job["steps"]]


def script(job, step):
    (found,) = (each["run"] for name, each in steps() if (name, each["name"]) == (job, step))
    return found


def repetitions(language):
    """The repetitions of the page in that language; plain ones have none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [text for named, text in found if named == language]


def gitlab():
    text, _ = repetitions("yaml")
    (job,) = yaml.load(text, Loader=yaml.BaseLoader).values()
    return job


def command_lines():
    """Return the shell lines of the workflow and the page that start with one of the two commands."""
    shell = [step["run"] for _, step in steps() if "run" in step]
    shell += [*repetitions(""), *gitlab()["script"]]
    lines = [line.strip() for text in shell for line in text.splitlines()]
    return [line for line in dict.fromkeys(lines) if re.match(r"(parabench|pytest) ", line)]


def words(line):
    """The arguments, with the workflow's variables, and without what the shell does with the exit code."""
    return shlex.split(Template(line.partition(" || ")[0]).safe_substitute(workflow()["env"]), comments=True)


def test_actions_are_pinned_to_a_commit():
    used = [line.strip() for line in WORKFLOW.read_text().splitlines() if "uses:" in line]
    assert len(used) == 7
    assert all(re.fullmatch(r"(- )?uses: actions/[a-z-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line) for line in used), used


def test_every_command_is_understood(pytester):
    """By the real parsers, of click and of pytest, without running anything."""
    lines = command_lines()
    assert len([line for line in lines if line.startswith("pytest ")]) >= 1
    assert {words(line)[1] for line in lines if line.startswith("parabench")} >= {"ab", "compare", "run", "doctor"}
    for line in lines:
        command, *arguments = words(line)
        if command == "parabench":
            command_of(arguments[0]).make_context(arguments[0], arguments[1:], **main.context_settings)
        else:
            pytester.parseconfig(*arguments)


STUB = """#!/bin/sh
echo "$@" >> "$CALLS"
for word; do case $word in *.md) echo verdict > "$word" ;; esac; done
exit $EXIT
"""


@pytest.fixture
def shell(tmp_path):
    """Runs a step of the workflow where `parabench` ends with a code of choice: (exit code, output, summary)."""
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "parabench"
    stub.write_text(STUB)
    stub.chmod(0o755)
    for folder in ("ab", "new"):
        (tmp_path / folder).mkdir()

    def run(text, code):
        summary, output = tmp_path / "summary", tmp_path / "output"
        summary.write_text("")
        output.write_text("")
        environment = os.environ | {
            "PATH": f"{stub.parent}:{os.environ['PATH']}",
            "CALLS": str(tmp_path / "calls"),
            "EXIT": str(code),
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_SHA": "0123456789abcdef",
            **workflow()["env"],
        }
        # As GitHub runs `shell: bash`.
        command = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, summary.read_text() + output.read_text()

    return run


@pytest.mark.parametrize(("job", "step"), [("ab", "Measure both in turns and judge"), ("gate", "Judge")])
def test_each_verdict_is_handled(shell, job, step):
    judge = script(job, step)
    assert shell(judge, 0) == (0, "", "verdict\n")
    assert shell(judge, 1) == (1, "", "verdict\n")
    assert shell(judge, 2)[0] == 2
    code, said, summary = shell(judge, 3)
    assert (code, summary) == (0, "verdict\n")
    assert said.startswith("::warning title=Inconclusive::A slowdown of 2% is not ruled out")
    assert shell(judge, 130)[0] == 130


def test_job_fails_when_nothing_was_measured(shell, tmp_path):
    measure = script("gate", "Measure")
    # Without a baseline a launch that failed is all there is to say; with one it is judged.
    assert shell(measure, 1) == (1, "", "measured=yes\n")
    (tmp_path / "base").mkdir()
    assert shell(measure, 1) == (0, "", "measured=yes\n")
    assert shell(measure, 2) == (2, "", "")
    assert (tmp_path / "calls").read_text().splitlines()[-1].endswith(f"--label 0123456789ab --out {tmp_path}/new")


def test_without_pytest_benchmark_a_suite_is_one_sentence(pytester):
    pytester.makepyfile(question='from parabench import sweep\nCASES = sweep(strategy="single")\n')
    said = pytester.runpytest("-p", "no:benchmark", "question.py")
    said.stdout.fnmatch_lines(
        ["parabench: pytest-benchmark is needed for the configurations of a suite; install it, *"]
    )
