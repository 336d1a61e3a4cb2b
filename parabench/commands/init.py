"""`parabench init`: write a suite, a workflow and a note for a model. `parabench check`: try one batch of a model."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal

import click

import parabench
from parabench.analysis import format
from parabench.analysis.answer import Answer, Columns, Records, tables
from parabench.commands.options import axes_in, data_option, model_option, shared
from parabench.commands.output import Command, file_option, files_in, give, note, say
from parabench.errors import UsageError
from parabench.files import write_whole
from parabench.machine.machine import this_machine
from parabench.models import MODELS, remedies
from parabench.plan import validate
from parabench.plan.case import Case
from parabench.plan.plan import one_case, why_not
from parabench.plan.suite import parse_axes
from parabench.registry import find, import_from_here
from parabench.store.record import Finding
from parabench.strategies import OPTIONAL, STRATEGIES, entry_of

SUITE, WORKFLOW, NOTE = "suites/training.py", ".github/workflows/performance.yml", "PERFORMANCE.md"
# {file: template}
TEMPLATES = {SUITE: "suite.py.txt", WORKFLOW: "github.yml", NOTE: "note.md"}
# The smallest number of ranks with communication.
RANKS = 2


@click.command(
    cls=Command,
    examples={
        "Begin in this folder, with parabench's own model:": "parabench init",
        "Begin with your model, on two ranks:": "parabench init --model own_model:factory --world-size 2",
        "Only write the files:": "parabench init benchmarks --no-trial",
    },
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--model",
    default="gpt-nano",
    show_default=True,
    help="A name that `parabench list` shows, or your own package.module:name.",
)
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    help="Ranks of each launch. [default: the number of devices; on the CPU 2]",
)
@click.option("--no-trial", is_flag=True, help="Write the files and run nothing.")
def init(folder: Path, model: str, world_size: int | None, no_trial: bool) -> None:
    """Write a suite, a workflow for pull requests and a note for your model to FOLDER, and try the suite.

    FOLDER is the working directory by default, and your model is imported from there. Existing files are not replaced.
    """
    there = [name for name in TEMPLATES if os.path.lexists(folder / name)]
    if there:
        raise UsageError(f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} in {folder} already; move or remove")
    Case(model=model)  # raises UsageError if it cannot be a name
    find(MODELS, "model", model)
    values = {
        "name": model.rpartition(":")[0] or model,
        "model": model,
        "world_size": str(world_size or len(this_machine().gpus) or RANKS),
        "suite": SUITE,
        "workflow": WORKFLOW,
    }
    shipped = files("parabench.commands.templates")
    written = {name: shipped.joinpath(template).read_text(encoding="utf-8") for name, template in TEMPLATES.items()}
    for name in (SUITE, NOTE):  # the workflow has GitHub's own variables
        written[name] = Template(written[name]).substitute(values)
    try:
        for name in TEMPLATES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror}; give another folder") from error
    with tempfile.TemporaryDirectory() as trial:
        if not no_trial:
            _try(folder, written[SUITE], Path(trial))
    for name, text in written.items():
        write_whole(folder / name, text, "file of a new project", "give another folder")
    change_folder = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    note([*(str(folder / name) for name in written), f"next: {change_folder}parabench run {SUITE}"])


def _try(folder: Path, suite: str, trial: Path) -> None:
    """Run the suite for a few steps. Raises UsageError if a case cannot be launched or fails."""
    path = trial / "training.py"
    path.write_text(suite, encoding="utf-8")
    command = [sys.executable, "-m", "parabench", "run", str(path), "--out", str(trial / "out"), "--label", "trial"]
    command += ["--launches", "1", "--warmup", "2", "--steps", "2", "--instrumented", "0"]
    note(["trying the suite: each configuration once, a few steps"])
    environment = dict(os.environ)
    checkout = Path(parabench.__file__).parents[1]
    if checkout == Path.cwd():  # parabench may not be installed
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        say(line for line in ran.stdout.splitlines() if line.startswith("["))
        raise UsageError("the suite does not run here, and nothing is written; fix the error above, or give --no-trial")


@click.command(
    cls=Command,
    examples={
        "Does my model train, and which strategies can it use?": "parabench check --model own_model:factory",
        "Does it train on my data, with sequences of 128 tokens?": (
            "parabench check --model own_model:factory --data own_model:dataset --set seq_len=128"
        ),
        "The same for a script:": "parabench check --model own_model:factory --json -",
    },
)
@shared(model_option, data_option)
@click.option(
    "--set",
    "axes",
    multiple=True,
    metavar="AXIS=VALUE",
    help="A value for an axis, such as world_size, which is 2 by default. Only `strategy` takes several.",
)
@file_option("json", "Write JSON (docs/reference/json.md).")
def check(**options: Any) -> None:
    """Try one batch of --model on the CPU, and list what each strategy needs. Nothing is launched or recorded."""
    import_from_here()
    files, axes = files_in(options), parse_axes(axes_in(options))
    found, warnings = examination(axes)
    give(files, lambda: Answer((), tables(TABLES, found), warnings=warnings), lines(found, warnings), "check")


# The tables of the answer of `check`.
TABLES: Mapping[str, Columns] = {
    "trial": {"model": str, "data": str, "world_size": int, "skipped": str | None, "verification": str},
    "steps": {"step": str, "found": str},
    "parameters": {"name": str, "lacks": Literal["unused", "unread", "hidden", "left_out"]},
    "suspects": {"property": str, "remedy": str},
    "strategies": {"strategy": str, "missing": str | None},
}


def examination(axes: Mapping[str, tuple[Any, ...]]) -> tuple[Records, tuple[Finding, ...]]:
    """Try a batch. Return (the rows of TABLES, warnings). Raises UsageError if the axes or the model are wrong."""
    from parabench.data.trial import needs_of_ddp, trial_of, warnings_of

    if "model" not in axes:
        raise UsageError("no model is given; give --model package.module:name")
    several = next((name for name, values in axes.items() if name != "strategy" and len(values) > 1), None)
    if several is not None:
        raise UsageError(f"--set {several} has {len(axes[several])} values, and check takes one; leave one")
    machine = this_machine()
    chosen = {"world_size": RANKS} | {name: values[0] for name, values in axes.items() if name != "strategy"}
    strategies = axes.get("strategy", tuple(STRATEGIES))
    for strategy in strategies:
        validate.check_name("strategy", strategy, STRATEGIES)
    single = {name: value for name, value in chosen.items() if name not in OPTIONAL}
    case = one_case(single | {"strategy": "single"}, machine)
    validate.check(case)
    trial = trial_of(case)

    def missing(strategy: str) -> str | None:
        # An axis that only some strategies have is dropped for the others, as in a suite.
        own = entry_of(strategy).axes
        given = {name: value for name, value in chosen.items() if name not in OPTIONAL or name in own}
        why = why_not(given | {"strategy": strategy}, machine)
        if why is not None or given["world_size"] == 1:
            return why
        find_unused, static = bool(given.get("find_unused_parameters")), bool(given.get("static_graph"))
        return needs_of_ddp(trial, strategy, find_unused=find_unused, static=static)

    facts = {"model": case.model, "data": case.data, "world_size": chosen["world_size"], "skipped": trial.skipped}
    suspects = remedies(trial.suspects, case.verification)
    kinds = ("unused", "unread", "hidden", "left_out")
    rows = {
        "trial": [facts | {"verification": case.verification}],
        "steps": [{"step": step, "found": found} for step, found in trial.steps.items()],
        "parameters": [{"name": name, "lacks": kind} for kind in kinds for name in getattr(trial, kind)],
        "suspects": [{"property": name, "remedy": remedy} for name, remedy in suspects.items()],
        "strategies": [{"strategy": strategy, "missing": missing(strategy)} for strategy in strategies],
    }
    return rows, tuple(map(warning, warnings_of(trial, case.verification, gradients=True)))


def warning(text: str) -> Finding:
    """Return a warning from text that has the remedy after a semicolon."""
    message, _, advice = text.partition("; ")
    return Finding("trial", message, advice)


def lines(found: Records, warnings: Sequence[Finding]) -> Iterator[str]:
    """Yield the examination as lines for the terminal."""
    (trial,) = found["trial"]
    rows = [(row["step"], row["found"]) for row in found["steps"]]
    rows += [("skipped", trial["skipped"])] if trial["skipped"] else []
    rows += [("verified", f"at level {trial['verification']}")]
    rows += [("warning", "; ".join(filter(None, (each.message, each.advice)))) for each in warnings]
    yield from format.aligned(rows, texts=2)
    yield ""
    table = [("strategy", f"on {format.count(trial['world_size'], 'rank')}")]
    table += [(row["strategy"], row["missing"] or "nothing missing") for row in found["strategies"]]
    yield from format.aligned(table, texts=2)
