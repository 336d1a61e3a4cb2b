"""Run the checks in child processes, so that a crash or a hang fails one check only; print a table, write JSON.

The exit code is 0 if every check that ran passed, 1 if one failed, and 2 with the reason if there is no GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import clocks, collectives, launches, machine, memory, nccl, sensors, watched
from benchmarks.gpu.check import REHEARSAL, Check, Outcome, Target, Verdict
from benchmarks.gpu.child import Budget, run_checks, work
from parabench.errors import UsageError
from parabench.files import write_whole

# All checks in the order in which they run. First come cheap checks that explain the failures of others, then the most
# likely failures of a first user. Checks that hold the GPU follow one another, because they share a process.
CHECKS: tuple[Check, ...] = (
    machine.doctor, machine.fork_server,
    clocks.step_clock, collectives.stream_queue, sensors.readings, watched.watching, sensors.energy,
    clocks.host_clock, sensors.pcie_counters,
    nccl.one_rank, launches.loaded, launches.profiled, memory.peaks, launches.strategies,
    launches.out_of_memory, launches.hang, launches.in_turns, launches.compiled,
    collectives.gloo_collectives, sensors.sampling, launches.equal_sides, launches.algorithms,
    collectives.nccl_strategies, collectives.nccl_algorithms, collectives.nccl_collectives,
)  # fmt: skip

STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_RUN: "yellow"}
# In a process that ends: a GPU in exclusive mode admits one process, which the checks need to be.
FIND_GPU = """
import json, torch
torch.cuda.init()
known = torch.cuda.get_device_properties(0)
print(json.dumps([known.name, known.total_memory]))
"""
FIND_S = 120.0

# The outcome of each check with its seconds; None: it has not run.
Outcomes = dict[str, tuple[Outcome, float | None]]


@click.command()
@click.option("--only", default="", help="Names of checks, separated by commas. [default: all]")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Stop after this time.")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcomes to this file."
)
@click.option("--list", "listing", is_flag=True, help="Print the checks with what each expects, and run none.")
@click.option("--rehearse", is_flag=True, help="Check the checks: run on the CPU those that can run there.")
@click.option("--child", hidden=True)
def main(only: str, budget: float | None, file: Path | None, listing: bool, rehearse: bool, child: str | None) -> None:
    """Conformance checks of the GPU path."""
    began_s = time.monotonic()
    known = {check.name: check for check in CHECKS}
    names = [name for name in only.split(",") if name] or list(known)
    if unknown := sorted(set(names) - known.keys()):
        refuse(f"no check is named {unknown[0]!r}; --list shows the names")
    chosen = [known[name] for name in names]
    if child is not None:
        work(chosen, child)
        return
    if listing:
        for check in chosen:
            click.echo(f"{check.name}: {check.expected}")
        return
    if rehearse:
        needs_gpu = [check.name for check in chosen if not check.rehearsed]
        if only and needs_gpu:
            refuse(f"check {needs_gpu[0]!r} cannot run on the CPU; drop it from --only, or drop --rehearse")
        chosen = [check for check in chosen if check.rehearsed]
    target = REHEARSAL if rehearse else find_gpu()
    if isinstance(target, str):
        refuse(f"{target}; these checks need an NVIDIA GPU, or --rehearse for those that run on the CPU")
    try:
        outcomes = run_all(chosen, target, Budget(budget, began_s), file)
    except UsageError as error:
        refuse(str(error))
    sys.exit(any(outcome.verdict is Verdict.FAILED for outcome, _ in outcomes.values()))


def refuse(message: str) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(2)


def find_gpu() -> Target | str:
    """Return the first CUDA device, or the reason why there is none. This process does not initialize CUDA."""
    version = importlib.metadata.version("torch")
    if torch.version.cuda is None:
        return f"torch {version} is built without CUDA"
    try:
        ended = subprocess.run([sys.executable, "-c", FIND_GPU], capture_output=True, text=True, timeout=FIND_S)
    except subprocess.TimeoutExpired:
        return f"torch {version} does not initialize CUDA within {FIND_S:g} s"
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        return f"torch {version} finds no CUDA device: {last}"
    name, memory_bytes = json.loads(ended.stdout.splitlines()[-1])
    return Target("cuda", name, memory_bytes)


def run_all(checks: list[Check], target: Target, budget: Budget, file: Path | None) -> Outcomes:
    """Run the checks; after each print a line and write the file. At the end print a table."""
    console = Console()
    outcomes: Outcomes = {check.name: (Outcome.not_run("not yet"), None) for check in checks}
    write(file, checks, outcomes, target)
    for number, (check, outcome, seconds) in enumerate(run_checks(checks, target, budget), start=1):
        outcomes[check.name] = outcome, seconds
        write(file, checks, outcomes, target)
        line = f"[{number}/{len(checks)}] {check.name}: {outcome.verdict} after {seconds:.0f} s: {outcome.text}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for name in [name for name, (_, seconds) in outcomes.items() if seconds is None]:
        outcomes[name] = Outcome.not_run(budget.reason), None
    write(file, checks, outcomes, target)
    console.print(table(checks, outcomes))
    counts = {verdict: sum(outcome.verdict is verdict for outcome, _ in outcomes.values()) for verdict in Verdict}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    device = "CPU rehearsal, which says nothing about a GPU" if target.is_cpu else target.name
    console.print(f"{device}, torch {importlib.metadata.version('torch')}: {summary}", highlight=False, markup=False)
    return outcomes


def table(checks: list[Check], outcomes: Outcomes) -> Table:
    made = Table("check", "expected", "observed", "verdict", "s", show_lines=True)
    for check in checks:
        outcome, seconds = outcomes[check.name]
        style = STYLES[outcome.verdict]
        text = outcome.text.replace("[", r"\[")  # rich reads square brackets as markup
        verdict = f"[{style}]{outcome.verdict}[/{style}]"
        made.add_row(check.name, check.expected, text, verdict, "" if seconds is None else f"{seconds:.0f}")
    return made


def write(file: Path | None, checks: list[Check], outcomes: Outcomes, target: Target) -> None:
    """Write the outcomes so far: a reader finds a whole file at any time. Raises UsageError if that fails."""
    if file is None:
        return
    report = {
        "device": target.name,
        "memory_bytes": target.memory_bytes,
        "torch": importlib.metadata.version("torch"),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "checks": [
            {"check": check.name, "expected": check.expected, "seconds": seconds, **asdict(outcome)}
            for check in checks
            for outcome, seconds in [outcomes[check.name]]
        ],
    }
    write_whole(file, json.dumps(report, indent=2) + "\n", "list of outcomes", "give another file to --json")


if __name__ == "__main__":
    main()
