"""Try each family of faults many times, and print the results; the exit code is 1 if a try failed.

    python -m tests.faults [FAMILY ...] [--tries 50] [--seed 1] [--try NUMBER] [--jobs 2] [--json FILE]

The family, the seed and the number reproduce a try.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random

from tests.faults import around, contention, disk, drivers, memory, nodes, ranks, sweeps
from tests.faults.trial import CannotTry, Verdict

Family = Callable[[Random], Verdict]
MODULES = (ranks, drivers, sweeps, nodes, disk, contention, memory, around)
FAMILIES: dict[str, Family] = {name: made for module in MODULES for name, made in module.FAMILIES.items()}


def tried(name: str, seed: int, number: int) -> Verdict:
    """One try of a family."""
    try:
        verdict = FAMILIES[name](Random(f"{seed} {name} {number}"))
    except CannotTry:
        raise
    except Exception:
        verdict = Verdict()
        verdict.fault("not_resumed", traceback.format_exc())
    if not verdict.clean:
        print(f"{name}, try {number}:", *verdict.words, sep="\n    ", flush=True)
    return verdict


def family(name: str, seed: int, numbers: Sequence[int], jobs: int) -> Verdict:
    """Run all tries of a family, `jobs` at the same time."""
    whole = Verdict(tries=0)
    with ThreadPoolExecutor(jobs) as pool:
        for each in pool.map(lambda number: tried(name, seed, number), numbers):
            whole.add(each)
    return whole


def table(found: dict[str, Verdict]) -> str:
    """A row for each family, as Markdown."""
    heads = list(Verdict().counts)
    rows = [["family", "tries", *(each.replace("_", " ") for each in heads)], ["---", *["---:"] * (len(heads) + 1)]]
    rows += [[name, str(each.tries), *map(str, each.counts.values())] for name, each in found.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; all where none is named"
    )
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--try", type=int, dest="only", help="the only one to make, by its number")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file to which the families' rows are added")
    asked = parser.parse_args()
    unknown = [each for each in asked.families if each not in FAMILIES]
    if unknown:
        parser.error(f"no family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    numbers = range(asked.tries) if asked.only is None else [asked.only]
    found: dict[str, Verdict] = {}
    for name in asked.families or FAMILIES:
        try:
            found[name] = family(name, asked.seed, numbers, asked.jobs)
        except CannotTry as why:
            print(f"{name}: not tried: {why}", flush=True)
            continue
        print(f"{name}: {found[name].tries} tries, {found[name].counts}", flush=True)
        if asked.json:
            with asked.json.open("a") as file:
                file.write(json.dumps({"family": name, "seed": asked.seed, **asdict(found[name])}) + "\n")
    print(table(found))
    sys.exit(0 if found and all(each.clean for each in found.values()) else 1)


if __name__ == "__main__":
    main()
