"""`python -m benchmarks.measure`: how large the house is, whether imports go one way, what tests and answers take.

Lines are counted as `wc -l` does. The order of rooms is that of tests/unit/test_imports.py. How long the tests took is
read from what the last `.ci/run` kept here; `report` and `best` are timed now, beside a bare `torchrun`.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from benchmarks import answer_cost
from tests.unit.test_imports import ORDER, arrows, names, room

# What reads stores and makes pages; all else plans, measures and keeps.
READING = ("analysis", "report", "serve")
MOST_LINES = 350
MOST_MODULES = 14
ROOT = Path(__file__).parents[1]
# What `make test PYTEST_OPTIONS=--durations=0` said.
TESTED = ROOT / "parabench-results" / "tests.txt"


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
    everything = names().values()
    tests = (ROOT / "tests").rglob("*.py")
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    yield "files of parabench/", f"{len(everything)}", "230"
    yield "lines of parabench/", f"{sum(map(lines_of, everything)):,}", "31,000"
    yield "lines of tests/", f"{sum(map(lines_of, tests)):,}", "23,000"
    yield "lines of README.md", f"{lines_of(ROOT / 'README.md')}", "120"
    yield "dependencies", f"{len(needs)}{', statsmodels' * ('statsmodels' in str(needs))}", "14"
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


def waiting(tested: str) -> Iterator[tuple[str, str, str]]:
    """(what, now, aim) of the tests, out of what pytest said of both halves with `--durations=0`."""
    ended = [float(one) for one in re.findall(r"^=.* in ([\d.]+)s.*=$", tested, re.MULTILINE)]
    by_file: Counter[str] = Counter()
    for seconds, file in re.findall(r"^([\d.]+)s (?:call|setup|teardown) +([^:]+)::", tested, re.MULTILINE):
        by_file[file] += float(seconds)
    if ended and by_file:
        ((file, longest),) = by_file.most_common(1)
        yield "minutes of make test, in the last .ci/run", f"{sum(ended) / 60:.1f}", "8"
        yield "seconds of its longest file", f"{longest:.0f}, {file}", "60"


def over_torchrun() -> Iterator[tuple[str, str, str]]:
    """(what, now, aim) of the commands that answer; a minute."""
    for command, ratio in answer_cost.ratios_of_simulated().items():
        now = f"{ratio.wall:.2f} (of its processor time {ratio.cpu:.2f})"
        yield f"{command}, times a torchrun of an empty script", now, f"{answer_cost.AIMS[command]}"


def main() -> None:
    print(f"{'what':<52} {'at most':>8}  now")
    for what, now, aim in chain(table(), waiting(TESTED.read_text() if TESTED.exists() else ""), over_torchrun()):
        print(f"{what:<52} {aim:>8}  {now}")
    print("\nroom                 files   lines")
    for name in sorted({name.partition(".")[0] for name, path in names().items() if path.parent.name != "parabench"}):
        inside = [path for module, path in names().items() if module.partition(".")[0] == name]
        print(f"{name:<20} {len(inside):>5}  {sum(map(lines_of, inside)):>6,}")


if __name__ == "__main__":
    main()
