"""The workflow for GitHub and the page about CI: their shape, their shell, and that their commands are understood."""

import re
import shlex
from string import Template

import pytest
import yaml

from command_line import command_of
from gate_helpers import Ran
from parabench.cli import main
from paths import DOCS, ROOT

WORKFLOW = ROOT / "examples" / "github-gate.yml"
PAGE = DOCS / "how-to/ci.md"


# The keys of a job in GitHub's workflow syntax. BaseLoader keeps `on` a word.
def workflow():
    return yaml.load(WORKFLOW.read_text(), Loader=yaml.BaseLoader)


def steps():
    return [(name, step) for name, job in workflow()["jobs"].items() for step in job["steps"]]


def ran(folder, job, step, code):
    """Run a step of the workflow as GitHub runs `shell: bash`."""
    (text,) = (each["run"] for name, each in steps() if (name, each["name"]) == (job, step))
    script = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", text]
    return Ran(script, folder, folder, code, GITHUB_SHA="0123456789abcdef", **workflow()["env"])


def repetitions(language):
    """The repetitions of the page in that language; plain ones have none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [text for named, text in found if named == language]


def command_lines():
    """Return the shell lines of the workflow and the page that start with one of the two commands."""
    shell = [step["run"] for _, step in steps() if "run" in step]
    gitlab, _ = repetitions("yaml")
    (job,) = yaml.load(gitlab, Loader=yaml.BaseLoader).values()
    shell += [*repetitions(""), *job["script"]]
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


@pytest.mark.parametrize(("job", "step"), [("ab", "Measure both in turns and judge"), ("gate", "Judge")])
def test_each_verdict_is_handled(tmp_path, job, step):
    (tmp_path / "new").mkdir()
    warning = "::warning title=Inconclusive::A slowdown of 2% is not ruled out"
    for code, ends, said in ((0, 0, ""), (1, 1, ""), (2, 2, ""), (3, 0, warning), (130, 130, "")):
        done = ran(tmp_path, job, step, code)
        assert (done.code, done.said[: len(warning)], done.summary) == (ends, said, "verdict\n")


def test_job_fails_when_nothing_was_measured(tmp_path):
    def measured(code):
        done = ran(tmp_path, "gate", "Measure", code)
        assert done.words[-4:] == ["--label", "0123456789ab", "--out", f"{tmp_path}/new"]
        return done.code, done.outputs

    # Without a baseline a launch that failed is all there is to say; with one it is judged.
    assert measured(1) == (1, {"measured": "yes"})
    (tmp_path / "base").mkdir()
    assert measured(1) == (0, {"measured": "yes"})
    assert measured(2) == (2, {})


def test_without_pytest_benchmark_a_suite_is_one_sentence(pytester):
    pytester.makepyfile(question='from parabench import sweep\nCASES = sweep(strategy="single")\n')
    said = pytester.runpytest("-p", "no:benchmark", "question.py")
    assert "parabench: pytest-benchmark is needed for the configurations of a suite; install it, " in said.stdout.str()
