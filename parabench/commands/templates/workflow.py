"""A workflow with what a runner's noise asks of its gate: as `parabench init` writes it, or copied and changed."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from parabench.analysis.noise import Needs, Sensitivity
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.files import write_whole

# What tolerance the gate gets: the first with which equal sides pass in a run that a pull request can wait for.
TOLERANCES, LONGEST_MINUTES = (0.02, 0.05, 0.1), 30.0
REMEDY = "give a workflow of `parabench init`, or a file that is not there yet"

# An input of the action, on a line of its own, with the comment behind it.
_INPUT = r"^(?P<before> +{name}: +)(?P<value>[^\n#]*?)(?P<behind> *(?: #[^\n]*)?)$"


def gate_of(answer: Sensitivity) -> Needs | None:
    """The gate that a workflow gets; None where none passes in time."""
    by_change = {each.change: each for each in answer.needs}
    gates = (by_change[each] for each in TOLERANCES if each in by_change)
    in_time = (each for each in gates if each.gate_minutes is not None and each.gate_minutes <= LONGEST_MINUTES)
    return next(in_time, None)


def check_workflow(path: Path, suite: str) -> None:
    """Raise UsageError for a file that could not be filled with what `suite` needs."""
    _inputs(_text(path, suite), path, suite)


def fill_workflow(path: Path, suite: str, answer: Sensitivity) -> str:
    """Write the tolerance, the launches and the rounds into the workflow, which is made where it is not there, and
    return what became of it. The rest of the file stays. Raises UsageError."""
    gate = gate_of(answer)
    if gate is None:
        widest = format.percent(max(TOLERANCES))
        return (
            f"{path} stays as it is: not even {widest} passes in {LONGEST_MINUTES:g} minutes here; take fewer cases, "
            "or prepare the runner (docs/how-to/ci.md)"
        )
    text = _text(path, suite)
    options = _inputs(text, path, suite)
    words = {"--launches": str(gate.gate_launches), "--rounds": str(answer.rounds or 0)}
    for name, value in words.items():
        word = re.compile(rf"(?<!\S){name}[ =]\S+")
        options = word.sub(f"{name} {value}", options) if word.search(options) else f"{options} {name} {value}".strip()
    text = _with(text, "tolerance", f"{100 * gate.change:g}%")
    if _find(text, "options"):
        text = _with(text, "options", options)
    else:
        text = re.sub(
            _INPUT.format(name="tolerance"), rf"\g<0>\n{_indent(text)}options: {options}", text, flags=re.MULTILINE
        )
    write_whole(path, text, "workflow", REMEDY)
    return f"{path}: a tolerance of {format.percent(gate.change)}, {options}"


def _text(path: Path, suite: str) -> str:
    """The workflow as it is; where there is none, the template for that suite."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        template = files("parabench.commands.templates").joinpath("github.yml").read_text(encoding="utf-8")
        return _with(template, "suite", suite)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({format.one_line(error)}); {REMEDY}") from error


def _inputs(text: str, path: Path, suite: str) -> str:
    """The options that the action has in a workflow, empty where none. Raises UsageError where it has not one step of
    the action, for another suite, or options that are no plain line."""
    found = {name: _find(text, name) for name in ("suite", "tolerance", "options")}
    if len(found["suite"]) != 1 or len(found["tolerance"]) != 1 or len(found["options"]) > 1:
        raise UsageError(f"{path} has not one step with a line of each, suite and tolerance; {REMEDY}")
    gated = found["suite"][0].strip("'\"")
    if Path(gated).stem != Path(suite).stem:
        raise UsageError(f"{path} is of the suite {gated!r} and not of {suite!r}; measure the noise of that one")
    options = next(iter(found["options"]), "").strip()
    if options[:1] in ("|", ">") or (options[:1] in ("'", '"') and options[-1:] != options[:1]):
        raise UsageError(f"{path} has options that are not on one line; write them so: options: --launches 8")
    return options.strip("'\"") if options[:1] in ("'", '"') else options


def _find(text: str, name: str) -> list[str]:
    return [found["value"] for found in re.finditer(_INPUT.format(name=name), text, re.MULTILINE)]


def _with(text: str, name: str, value: str) -> str:
    """The text with another value of the input."""
    return re.sub(
        _INPUT.format(name=name), lambda found: f"{found['before']}{value}{found['behind']}", text, flags=re.MULTILINE
    )


def _indent(text: str) -> str:
    found = re.search(r"^( +)tolerance:", text, re.MULTILINE)
    assert found is not None
    return found[1]
