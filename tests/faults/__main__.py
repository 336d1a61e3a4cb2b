"""Try each family of faults many times, and print the results; the exit code is 1 if a try failed.

    python -m tests.faults [FAMILY ...] [--tries 50] [--seed 1] [--try NUMBER] [--jobs 2] [--json FILE]

The family, the seed and the number reproduce a try.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.faults import contention, disk, drivers, environments, nodes, ranks
from tests.faults.trial import VIOLATIONS, CannotTry, Family, Verdict, attempt

MODULES = (ranks, drivers, nodes, disk, contention, environments)
FAMILIES: dict[str, Family] = {name: made for module in MODULES for name, made in module.FAMILIES.items()}


def tried(name: str, seed: int, number: int) -> Verdict:
    """Try a family once, and print its violations."""
    verdict = attempt(FAMILIES[name], Random(f"{seed} {name} {number}"))
    if verdict.words:
        print(f"{name}, try {number}:", *verdict.words, sep="\n    ", flush=True)
    return verdict


def tried_often(name: str, seed: int, numbers: Sequence[int], jobs: int) -> Verdict:
    """Run all tries of a family, `jobs` at the same time."""
    with ThreadPoolExecutor(jobs) as pool:
        return Verdict.sum(pool.map(lambda number: tried(name, seed, number), numbers))


def table(found: dict[str, Verdict]) -> str:
    """Return a Markdown table with a row for each family."""
    heads = [each.replace("_", " ") for each in VIOLATIONS]
    rows = [["family", "tries", *heads], ["---", *["---:"] * (len(heads) + 1)]]
    rows += [[name, str(each.tries), *(str(each.counts[kind]) for kind in VIOLATIONS)] for name, each in found.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"{', '.join(FAMILIES)}; default: all")
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--try", type=int, dest="only", help="the number of the only try")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file to which a line for each family is appended")
    options = parser.parse_args()
    if unknown := [each for each in options.families if each not in FAMILIES]:
        parser.error(f"no family {unknown[0]!r}; use one of {', '.join(FAMILIES)}")
    numbers = range(options.tries) if options.only is None else [options.only]
    found: dict[str, Verdict] = {}
    for name in options.families or FAMILIES:
        try:
            found[name] = tried_often(name, options.seed, numbers, options.jobs)
        except CannotTry as why:
            print(f"{name}: not tried: {why}", flush=True)
            continue
        print(f"{name}: {found[name].tries} tries, {dict(found[name].counts)}", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps({"family": name, "seed": options.seed, **vars(found[name])}) + "\n")
    print(table(found))
    sys.exit(0 if found and not any(each.words for each in found.values()) else 1)


if __name__ == "__main__":
    main()
