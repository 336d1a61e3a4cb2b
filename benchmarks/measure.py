"""`python -m benchmarks.measure`: the size of the code, the cost of answers, and the limits that they are held to.

Lines are counted as `wc -l` does. Commands are timed next to a bare `torchrun`, because absolute times differ between
machines.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from benchmarks import answer_cost
from tests.unit.test_imports import names

ROOT = Path(__file__).parents[1]
# The limit of lines in each part.
LIMITS = {
    "parabench": 43_000, "parabench/report": 3_200, "parabench/store": 1_000, "tests": 33_000, "benchmarks": 5_000,
}  # fmt: skip


def lines_of(*places: str) -> int:
    """Return the lines of Python in files and folders of the checkout."""
    paths = [ROOT / place for place in places]
    files = (file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))
    return sum(file.read_bytes().count(b"\n") for file in files)


def sizes() -> Iterator[tuple[str, str, str]]:
    """Yield (what, now, limit) of the code."""
    yield "files in parabench/", f"{len(names())}", "260"
    for place, limit in LIMITS.items():
        yield f"lines in {place}/", f"{lines_of(place):,}", f"{limit:,}"
    answering = lines_of("parabench/analysis") - lines_of("parabench/analysis/prediction")
    yield "lines in analysis/ without prediction", f"{answering:,}", "7,200"
    page = [path for kind in ("*.html", "script/**/*.js", "style/*.css") for path in (ROOT / "reports").glob(kind)]
    yield "lines of the page's templates and scripts", f"{sum(p.read_bytes().count(10) for p in page):,}", "2,000"
    yield "lines in cluster/ and ab/", f"{lines_of('parabench/cluster', 'parabench/ab'):,}", "3,200"
    prediction = lines_of("parabench/analysis/prediction", "parabench/commands/predict.py")
    yield "lines of prediction", f"{prediction:,}", "1,500"


def answers() -> Iterator[tuple[str, str, str]]:
    """Yield (what, now, limit) of the commands that answer."""
    for command, (wall, cpu) in answer_cost.ratios().items():
        now = f"{wall:.2f} (processor time: {cpu:.2f})"
        yield f"{command} / a torchrun of an empty script", now, f"{answer_cost.AIMS[command]}"
    with tempfile.TemporaryDirectory() as folder:
        store, page = Path(folder) / "results.db", Path(folder) / "page.html"
        subprocess.run([sys.executable, "-m", "benchmarks.big_store", str(store)], check=True, cwd=ROOT)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "parabench", "report", str(store), "-o", str(page)], check=True, cwd=ROOT)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    yield "report of 1,000 launches: seconds of CPU", f"{seconds:.1f}", "10"
    # The largest child so far, which this report is.
    yield "report of 1,000 launches: MiB", f"{used.ru_maxrss / 1024:.0f}", "600"


def main() -> None:
    print(f"{'what':<48} {'limit':>8}  now")
    for what, now, limit in chain(sizes(), answers()):
        print(f"{what:<48} {limit:>8}  {now}")


if __name__ == "__main__":
    main()
