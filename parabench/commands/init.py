"""`parabench init`: a suite, a workflow and a note for one's own model, tried by running the suite."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template

import click

import parabench
from parabench.commands.options import complete_values
from parabench.commands.output import Command, note, say
from parabench.errors import UsageError
from parabench.files import write_whole
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.registry import find

SUITE, WORKFLOW, NOTE = "suites/training.py", ".github/workflows/performance.yml", "PERFORMANCE.md"
# By file: its template.
TEMPLATES = {SUITE: "suite.py.txt", WORKFLOW: "github.yml", NOTE: "note.md"}
# So short that each case has a launch in seconds; what it measures is of no use.
TRIAL = ("--launches", "1", "--warmup", "2", "--steps", "2", "--instrumented", "0", "--label", "trial")


@click.command(
    cls=Command,
    examples={
        "Begin in this folder, with parabench's own model:": "parabench init",
        "Begin with a model of your own, on two ranks:": "parabench init --model own_model:factory --world-size 2",
        "Only write the files:": "parabench init benchmarks --no-trial",
    },
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--model",
    default="gpt-nano",
    show_default=True,
    help="A name that `parabench list` shows, or your own package.module:name.",
    shell_complete=complete_values("model"),
)
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    help="Ranks of each launch. [default: as many as there are devices, 2 at least on the CPU]",
)
@click.option("--no-trial", is_flag=True, help="Write the files and run nothing.")
def init(folder: Path, model: str, world_size: int | None, no_trial: bool) -> None:
    """Write a suite, a workflow for pull requests and a note for your model to FOLDER, and try the suite.

    FOLDER is the working directory when not given, and your model is found from there. No file is replaced.
    """
    there = [name for name in TEMPLATES if os.path.lexists(folder / name)]
    if there:
        raise UsageError(f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} in {folder} already; move or remove")
    Case(model=model)  # what cannot be a name ends here
    find(MODELS, "model", model)
    values = {
        "name": model.rpartition(":")[0] or model,
        "model": model,
        "world_size": str(world_size or _devices()),
        "suite": SUITE,
        "workflow": WORKFLOW,
    }
    written = {name: _filled(template, values) for name, template in TEMPLATES.items()}
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
    note(str(folder / name) for name in written)
    note([f"next: {'' if folder == Path() else f'cd {shlex.quote(str(folder))} && '}parabench run {SUITE}"])


def _devices() -> int:
    from parabench.machine.machine import this_machine

    machine = this_machine()
    return len(machine.gpus) or 2


def _filled(template: str, values: dict[str, str]) -> str:
    text = files("parabench.commands.templates").joinpath(template).read_text(encoding="utf-8")
    # Of a workflow `$$` is not asked for: what GitHub fills in has braces of its own.
    return text if template.endswith(".yml") else Template(text).substitute(values)


def _try(folder: Path, suite: str, trial: Path) -> None:
    """Run the suite for a few steps. Raises UsageError if a case cannot be launched or fails."""
    path = trial / "training.py"
    path.write_text(suite, encoding="utf-8")
    command = [sys.executable, "-m", "parabench", "run", str(path), "--out", str(trial / "out"), *TRIAL]
    note(["trying the suite: each case once, a few steps"])
    environment = dict(os.environ)
    checkout = Path(parabench.__file__).parents[1]
    if checkout == Path.cwd():  # Python may have found parabench only there
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        said = [line for line in ran.stdout.splitlines() if line.startswith("[")]
        say(said)
        raise UsageError(
            "the suite does not run here, and nothing is written; fix what is said above, or give --no-trial"
        )
