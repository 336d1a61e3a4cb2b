"""`python -m benchmarks.gpu`: run the checks, show a table, write JSON."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import clocks, collectives, faults, machine, memory, sensors, sides, training
from benchmarks.gpu.check import Check, Seen, Verdict, run_apart, run_here

# The cheap ones first: what they find explains the failures of the others.
CHECKS: tuple[Check, ...] = (
    *machine.CHECKS,
    *clocks.CHECKS,
    *sensors.CHECKS,
    *memory.CHECKS,
    *training.CHECKS,
    *sides.CHECKS,
    *collectives.CHECKS,
    *faults.CHECKS,
)
STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_RUN: "yellow"}


@click.command()
@click.option("--only", default="", help="Names of checks, separated by commas. [default: all]")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write what was seen here.")
@click.option("--list", "listing", is_flag=True, help="Name the checks and what each expects, and run none.")
@click.option("--rehearse", is_flag=True, help="Run on the CPU what has a meaning there: it checks the checks.")
@click.option("--here", hidden=True)
@click.option("--device", hidden=True, default="cuda")
def main(only: str, file: Path | None, listing: bool, rehearse: bool, here: str | None, device: str) -> None:
    """Conformance checks of the GPU path."""
    known = {check.name: check for check in CHECKS}
    if here is not None:
        run_here(known[here], torch.device(device, 0) if device == "cuda" else torch.device(device))
        return
    wanted = [name for name in only.split(",") if name] or list(known)
    if unknown := sorted(set(wanted) - known.keys()):
        refuse(f"no check is named {unknown[0]!r}; --list names them")
    chosen = [known[name] for name in wanted]
    if listing:
        for check in chosen:
            click.echo(f"{check.name}: {check.expected}")
        return
    if file is not None and not file.parent.is_dir():
        refuse(f"--json {str(file)!r}: there is no folder {str(file.parent)!r}; make it first")
    if not rehearse and (why := why_no_gpu()):
        refuse(f"{why}; these checks need an NVIDIA GPU, or --rehearse for what the CPU can show")
    on = torch.device("cpu") if rehearse else torch.device("cuda", 0)
    if rehearse:
        chosen = [check for check in chosen if check.rehearsed]
    results = run_all(chosen, on)
    if file is not None:
        file.write_text(json.dumps(report(on, results), indent=2) + "\n")
    sys.exit(any(seen.verdict is Verdict.FAILED for _, seen, _ in results))


def refuse(message: str) -> None:
    click.echo(f"Error: {message}", err=True)
    sys.exit(2)


def why_no_gpu() -> str | None:
    """Why there is no device to check; None where there is one."""
    version = importlib.metadata.version("torch")
    if torch.version.cuda is None:
        return f"torch {version} is built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"torch {version} finds no CUDA device: {str(error).splitlines()[0]}"
    return None if torch.cuda.device_count() else f"torch {version} finds no CUDA device"


def run_all(checks: list[Check], device: torch.device) -> list[tuple[Check, Seen, float]]:
    """Run the checks one after the other, each said as it ends, and show all as a table."""
    console = Console()
    results = []
    for number, check in enumerate(checks, start=1):
        begin = time.perf_counter()
        seen = run_apart(check, device)
        results.append((check, seen, time.perf_counter() - begin))
        console.print(f"[{number}/{len(checks)}] {check.name}: {seen.verdict}", highlight=False, markup=False)
    table = Table("check", "expected", "seen", "verdict", "s", show_lines=True)
    for check, seen, seconds in results:
        style = STYLES[seen.verdict]
        verdict = f"[{style}]{seen.verdict}[/{style}]"
        table.add_row(check.name, check.expected, plain(seen.text), verdict, f"{seconds:.0f}")
    console.print(table)
    console.print(f"{described(device)}: {counted(results)}", highlight=False, markup=False)
    return results


def plain(text: str) -> str:
    """`text` as it is: rich takes square brackets for its markup."""
    return text.replace("[", r"\[")


def counted(results: list[tuple[Check, Seen, float]]) -> str:
    numbers = {verdict: sum(seen.verdict is verdict for _, seen, _ in results) for verdict in Verdict}
    return ", ".join(f"{number} {verdict}" for verdict, number in numbers.items())


def described(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU rehearsal, no verdict on any GPU"
    return f"{name}, torch {importlib.metadata.version('torch')}"


def report(device: torch.device, results: list[tuple[Check, Seen, float]]) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": importlib.metadata.version("torch"),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "checks": [
            {
                "check": check.name,
                "expected": check.expected,
                "seen": seen.text,
                "verdict": seen.verdict,
                "seconds": round(seconds, 1),
                "numbers": seen.numbers,
            }
            for check, seen, seconds in results
        ],
    }


if __name__ == "__main__":
    main()
