"""`python -m benchmarks.measure [--answers]`: how large the house is, room by room, and whether imports go one way;
with `--answers` also what `best` and `report` take (benchmarks/answer_cost.py), which is a minute.

Lines are counted as `wc -l` does. The order of rooms is that of tests/unit/test_imports.py, which holds what this
prints.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import answer_cost
from tests.unit.test_imports import ORDER, arrows, names, room

# What reads stores and makes pages; all else plans, measures and keeps.
READING = ("analysis", "report", "serve")
MOST_LINES = 350
MOST_MODULES = 14


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def measuring() -> dict[str, Path]:
    """The modules of the measuring side, by their names below the package."""
    return {name: path for name, path in names().items() if name.split(".")[0] not in READING}


def rooms() -> dict[str, int]:
    """Modules of each folder, `__init__` apart; the root is ''."""
    inside = (name for name, path in names().items() if path.name != "__init__.py")
    return Counter(name.rpartition(".")[0] for name in inside)


def upward() -> set[tuple[str, str]]:
    """(importing, imported) where the imported module's room does not stand above in the order."""
    level = {name: at for at, layer in enumerate(ORDER) for name in layer.split()}
    return {(a, b) for a, b in arrows() if room(a) != room(b) and level[room(b)] >= level[room(a)]}


def circles(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Modules that import one another, directly or by way of others."""
    to: dict[str, set[str]] = {}
    for importing, imported in pairs:
        to.setdefault(importing, set()).add(imported)

    def reached(start: str) -> set[str]:
        found, left = set(), [start]
        while left:
            new = to.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reach = {name: reached(name) for name in to}
    each = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in to if a in reach[a]}
    return sorted(sorted(circle) for circle in each)


def circles_of_measuring() -> list[list[str]]:
    """Those that a module of the measuring side is part of."""
    side = set(measuring())
    return [circle for circle in circles(arrows()) if side & set(circle)]


def table() -> Iterator[tuple[str, str, str]]:
    """(what, now, aim)."""
    side = measuring()
    cluster = [path for name, path in side.items() if name.startswith("cluster")]
    long = {name: lines_of(path) for name, path in side.items() if lines_of(path) > MOST_LINES}
    full = {name: count for name, count in rooms().items() if count > MOST_MODULES and name.split(".")[0] in side}
    yield "modules in the root of parabench/", f"{rooms()['']}", "8"
    yield "files of the measuring side", f"{len(side)}", "145"
    yield "lines of the measuring side", f"{sum(map(lines_of, side.values())):,}", "18,400"
    yield "import circles, types included", "; ".join(map(", ".join, circles_of_measuring())) or "0", "0"
    yield "imports up the order of rooms", "; ".join(f"{a} -> {b}" for a, b in sorted(upward())) or "0", "0"
    yield "lines of cluster/", f"{sum(map(lines_of, cluster)):,}", "1,600"
    yield f"files of more than {MOST_LINES} lines", ", ".join(f"{n} {c}" for n, c in long.items()) or "0", "0"
    yield f"rooms of more than {MOST_MODULES} modules", ", ".join(f"{n} {c}" for n, c in full.items()) or "0", "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", action="store_true", help="Also measure what answers take.")
    given = parser.parse_args()
    print(f"{'what':<38} {'at most':>8}  now")
    for what, now, aim in table():
        print(f"{what:<38} {aim:>8}  {now}")
    print("\nroom                 files   lines")
    side = measuring()
    for name in sorted({name.split(".")[0] for name, path in side.items() if path.parent.name != "parabench"}):
        inside = [path for module, path in side.items() if module.split(".")[0] == name]
        print(f"{name:<20} {len(inside):>5}  {sum(map(lines_of, inside)):>6,}")
    if given.answers:
        print()
        print("\n".join(answer_cost.lines(answer_cost.ratios_of_simulated())))


if __name__ == "__main__":
    main()
