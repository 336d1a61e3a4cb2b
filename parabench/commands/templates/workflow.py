"""Write the tolerance, launches and rounds that a runner's noise requires into a workflow of `parabench init`."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from parabench.analysis import format
from parabench.analysis.noise import Needs, Sensitivity
from parabench.errors import UsageError
from parabench.files import write_whole

# The gate gets the first tolerance that equal variants pass within the time that a pull request can wait.
TOLERANCES, LONGEST_MINUTES = (0.02, 0.05, 0.1), 30.0
REMEDY = "give a workflow of `parabench init`, or a file that is not there yet"


def gate_of(answer: Sensitivity) -> Needs | None:
    """Return the gate that a workflow gets; None if no gate passes in time."""
    gates = sorted((each for each in answer.needs if each.change in TOLERANCES), key=lambda each: each.change)
    in_time = (each for each in gates if each.gate_minutes is not None and each.gate_minutes <= LONGEST_MINUTES)
    return next(in_time, None)


def check_workflow(path: Path, suite: str) -> str:
    """Return the text of a workflow for `suite`, or the template if there is no file.

    Raises UsageError for a file that is not a workflow with one step of the action for that suite.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        template = files("parabench.commands.templates").joinpath("github.yml").read_text(encoding="utf-8")
        text = _with(template, "suite", suite)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({format.one_line(error)}); {REMEDY}") from error
    found = {name: _values(text, name) for name in ("suite", "tolerance", "options")}
    if len(found["suite"]) != 1 or len(found["tolerance"]) != 1 or len(found["options"]) > 1:
        raise UsageError(f"{path} has not one step with a line of each, suite and tolerance; {REMEDY}")
    gated = found["suite"][0].strip("'\"")
    if Path(gated).stem != Path(suite).stem:
        raise UsageError(f"{path} is of the suite {gated!r} and not of {suite!r}; measure the noise of that one")
    if any(value[:1] in ("|", ">") for value in found["options"]):
        raise UsageError(f"{path} has options that are not on one line; write them so: options: --launches 8")
    return text


def fill_workflow(path: Path, suite: str, answer: Sensitivity) -> str:
    """Write the tolerance, launches and rounds into the workflow, and return a message. Raises UsageError."""
    gate = gate_of(answer)
    if gate is None:
        widest = format.percent(max(TOLERANCES))
        return (
            f"{path} stays as it is: not even {widest} passes in {LONGEST_MINUTES:g} minutes here; take fewer cases, "
            "or prepare the runner (docs/how-to/ci.md)"
        )
    text = _with(check_workflow(path, suite), "tolerance", f"{100 * gate.change:g}%")
    if not _values(text, "options"):
        text = _line("tolerance").sub(r"\g<0>\n\g<indent>options: ''", text)
    options = _values(text, "options")[0].strip("'\" ")
    for name, value in (("--launches", gate.gate_launches), ("--rounds", answer.rounds or 0)):
        word = re.compile(rf"(?<!\S){name}[ =]\S+")
        options = word.sub(f"{name} {value}", options) if word.search(options) else f"{options} {name} {value}".strip()
    write_whole(path, _with(text, "options", options), "workflow", REMEDY)
    return f"{path}: a tolerance of {format.percent(gate.change)}, {options}"


def _line(name: str) -> re.Pattern[str]:
    """Return the pattern of an input of the action on its line, with a comment."""
    return re.compile(rf"^(?P<indent> +){name}: +(?P<value>[^\n#]*?)(?P<comment> *(?: #[^\n]*)?)$", re.MULTILINE)


def _values(text: str, name: str) -> list[str]:
    return [found["value"] for found in _line(name).finditer(text)]


def _with(text: str, name: str, value: str) -> str:
    """Return the text with another value of the input."""
    return _line(name).sub(lambda found: f"{found['indent']}{name}: {value}{found['comment']}", text)
