"""Reading what is not ours: whatever a file holds, a command ends with an answer or with one line that says what is
wrong, in bounded memory, and nothing of it acts on a terminal, a page or a pull request.

    python -m tests.faults.reading [--tries 10000] [--seed 1] [--jobs 2] [--only FAMILY] [--try NUMBER]

A try is made again by its family, seed and number. The exit code is 1 where any came out wrong.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests/fixtures")) if path not in sys.path]

from parabench.files import shared_memory_folder  # noqa: E402  (it needs the path, as do the next)
from tests.faults import files, stores  # noqa: E402

COUNTS = ("traceback", "memory", "time", "exit_code", "output", "warning")
# What a try may hold more than its process held before, and how long it may compute (of its own time, whatever else the
# machine does).
MEMORY_BYTES = 700_000_000
COMPUTING_S = 60.0
# Tries that a process is given at once.
BATCH = 25
# Batches after which a process is replaced, for what it holds is its own; and after which the table so far is told.
TASKS, TOLD = 60, 40

# (the folder of this process with what was made once, a folder of the try's own, the lot) -> what is wrong, by COUNTS.
Try = Callable[[Path, Path, Random], Iterator[tuple[str, str]]]
FAMILIES: dict[str, tuple[Try, float]] = {**stores.FAMILIES, **files.FAMILIES}


@dataclass
class Row:
    """A family's tries, and how many of them came out wrong, by what was wrong."""

    tries: int = 0
    counts: Counter[str] = field(default_factory=Counter)


class TooLong(BaseException):
    """A try has computed for longer than it may."""


@contextmanager
def bounded(computing_s: float) -> Iterator[None]:
    def ended(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, ended)
    signal.setitimer(signal.ITIMER_PROF, computing_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def peak_bytes() -> int:
    """The most that this process held since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def tried(family: str, seed: int, number: int, made: Path) -> list[tuple[str, str]]:
    """What is wrong with one try: (one of COUNTS, in words)."""
    lot, wrong = Random(f"{seed} {family} {number}"), []
    forget_peak()
    before = peak_bytes()
    with tempfile.TemporaryDirectory(prefix="try-", dir=made) as folder, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with bounded(COMPUTING_S):
                wrong += FAMILIES[family][0](made, Path(folder), lot)
        except TooLong:
            wrong.append(("time", traceback.format_exc(limit=-3)))
        except Exception:
            wrong.append(("traceback", traceback.format_exc()))
    if (more := peak_bytes() - before) > MEMORY_BYTES:
        wrong.append(("memory", f"{more / 1e6:.0f} MB"))
    wrong += [("warning", f"{each.category.__name__} {each.filename}:{each.lineno} {each.message}") for each in warned]
    return wrong


def batch(asked: tuple[str, int, list[int], Path]) -> tuple[str, list[tuple[int, list[tuple[str, str]]]]]:
    """Some tries (family, seed, numbers, folder with what is made already): the family, and what is wrong by number."""
    family, seed, numbers, made = asked
    return family, [(number, tried(family, seed, number, made)) for number in numbers]


def say(words: str) -> None:
    print(words, flush=True)


def run(tries: int, seed: int, jobs: int = 2, only: str = "", tell: Callable[[str], None] = say) -> dict[str, Row]:
    """{family: its row}: `tries` of stores, and of the others their share."""
    rows = {name: Row() for name in FAMILIES if only in name}
    with (
        tempfile.TemporaryDirectory(prefix="reading-", dir=shared_memory_folder()) as folder,
        # An executor of concurrent.futures stands still when its processes are replaced (Python 3.11).
        get_context("spawn").Pool(jobs, maxtasksperchild=TASKS) as pool,
    ):
        made = Path(folder)
        files.make(made)
        batches = []
        for name in rows:
            count = max(1, round(tries * FAMILIES[name][1]))
            numbers = [list(range(first, min(first + BATCH, count))) for first in range(0, count, BATCH)]
            batches += [(name, seed, each, made) for each in numbers]
        Random(seed).shuffle(batches)  # what is wrong with any family shows early
        for at, (name, found) in enumerate(pool.imap_unordered(batch, batches), 1):
            for number, wrong in found:
                rows[name].tries += 1
                rows[name].counts.update({kind for kind, _ in wrong})
                for kind, words in wrong:
                    tell(f"--- {name} {number} {kind}\n{words.strip()[-3000:]}")
            if at % TOLD == 0:
                tell(f"{at} of {len(batches)} batches\n{table(rows)}")
    return rows


def table(rows: dict[str, Row]) -> str:
    """A row for each family, as Markdown."""
    heads = (
        "family",
        "tries",
        "tracebacks",
        "over 1 GB",
        "over a minute",
        "wrong exit codes",
        "hostile output",
        "warnings",
    )
    lines = [heads, ("---", *["---:"] * (len(heads) - 1))]
    lines += [(name, f"{row.tries:,}", *(str(row.counts[kind]) for kind in COUNTS)) for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.reading")
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="families whose name holds this")
    parser.add_argument("--try", dest="number", type=int, help="this one of --only again")
    asked = parser.parse_args()
    if asked.number is not None:
        with tempfile.TemporaryDirectory() as folder:
            files.make(Path(folder))
            found = tried(asked.only, asked.seed, asked.number, Path(folder))
        print(*(f"{kind}: {words}" for kind, words in found), sep="\n")
        sys.exit(bool(found))
    began = time.monotonic()
    rows = run(asked.tries, asked.seed, asked.jobs, asked.only)
    print(table(rows))
    print(f"seed {asked.seed}, {time.monotonic() - began:.0f} s")
    sys.exit(any(row.counts for row in rows.values()))


if __name__ == "__main__":
    main()
