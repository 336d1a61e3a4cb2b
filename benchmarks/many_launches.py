"""A store of 100,000 launches: what an append to it costs, and an answer about one of its sessions.

    python -m benchmarks.many_launches [--sessions 1000] [--suites 100] [--cases 20] [--launches 5] [--pairs 9] FOLDER

Writes four stores of simulated launches to FOLDER, or takes those that are there: `large.db` has all sessions, that
take turns to be of one of SUITES suites; the others hold what a question is about, `suite.db` the sessions of one
suite, `two.db` two of them, `one.db` one.

`append`: 1,000 launches are appended to a copy of `large.db` and to an empty store in turns, each to the one and then
to the other; told are the ratio of all the time they took, and that of the medians with its 95 % bootstrap interval.

Answers: commands are run on each of the stores in turns, PAIRS times after one that nobody counts, which also imports
what they need: what is left is what they do with the store. Told are medians of the ratio of processor time of
`large.db` by the small store, with its 95 % bootstrap interval, and the seconds of processor time. What a command is
about is a session from the middle of `large.db`, and the one of its suite before it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from click.testing import CliRunner

from benchmarks.big_store import Maker, begin, sweep
from benchmarks.ratios import median_ratio
from parabench.cli import main as parabench
from parabench.plan.case import Case
from parabench.store.record import Launch
from parabench.store.store import Store

STEPS = 15
RANKS = 2
APPENDED = 1_000


class Shape(NamedTuple):
    """How many sessions there are, of how many suites, each of so many cases launched so often."""

    sessions: int
    suites: int
    cases: int
    launches: int

    @property
    def asked(self) -> int:
        """The session that answers are about: one in the middle."""
        return self.sessions // 2

    def holds(self, store: str, session: int) -> bool:
        before = self.asked - self.suites
        return {
            "large.db": True,
            "suite.db": session % self.suites == self.asked % self.suites,
            "two.db": session in (before, self.asked),
            "one.db": session == self.asked,
        }[store]


STORES = ("large.db", "suite.db", "two.db", "one.db")


def write(folder: Path, shape: Shape) -> None:
    """Write the stores that are not there."""
    missing = [name for name in STORES if not (folder / name).exists()]
    if not missing:
        return
    if len(missing) < len(STORES):
        raise SystemExit(f"{folder} has only some of {', '.join(STORES)}; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    every = sweep(shape.suites * shape.cases, RANKS)
    make = Maker(STEPS, only_step_times=True)
    with ExitStack() as stack:
        stores = {name: stack.enter_context(Store.open_or_create(folder / name)) for name in STORES}
        for at in range(shape.sessions):
            suite = at % shape.suites
            cases = every[suite * shape.cases : (suite + 1) * shape.cases]
            made = launches(make, cases, shape.launches)
            for name, store in stores.items():
                if shape.holds(name, at):
                    session = _begin(store, cases, shape.launches, suite, label=f"s{at}")
                    for launch in made:
                        store.append(session, launch)
                    store.finish_session(session)


def _begin(store: Store, cases: list[Case], launches: int, suite: int, label: str) -> int:
    return begin(store, cases, launches=launches, steps=STEPS, suite=f"suite{suite}", label=label)


def launches(make: Maker, cases: Sequence[Case], blocks: int) -> list[Launch]:
    """Each case once a block, in an order by lot."""
    return [
        make.launch(cases[place], block, position, explained=False)
        for block in range(blocks)
        for position, place in enumerate(make.random.permutation(len(cases)))
    ]


def appends(large: Path, shape: Shape) -> str:
    """What an append to the large store takes by one to an empty store."""
    make = Maker(STEPS, only_step_times=True)
    cases = sweep(shape.cases, RANKS)
    seconds: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory(dir=large.parent) as folder, ExitStack() as stack:
        shutil.copy(large, Path(folder) / "large.db")
        stores = [stack.enter_context(Store.open_or_create(Path(folder) / name)) for name in ("large.db", "empty.db")]
        sessions = [_begin(store, cases, APPENDED // len(cases), 0, label="appended") for store in stores]
        made = launches(make, cases, -(-APPENDED // len(cases)))[:APPENDED]
        for launch, first in zip(made, make.random.integers(2, size=APPENDED).tolist(), strict=True):
            for which in (first, 1 - first):
                began = time.perf_counter()
                stores[which].append(sessions[which], launch)
                seconds[which].append(time.perf_counter() - began)
    ratio, low, high = median_ratio(np.log(np.array(seconds[0]) / np.array(seconds[1])))
    whole = sum(seconds[0]) / sum(seconds[1])
    return (
        f"append   {ratio:.3f} ({low:.3f} to {high:.3f}) times one to an empty store, median of {APPENDED:,} in turns; "
        f"all of them {whole:.3f} times"
    )


def answers(folder: Path, shape: Shape, pairs: int) -> Iterator[str]:
    """What commands take of the large store by what they take of the small ones."""
    asked, before = f"s{shape.asked}", f"s{shape.asked - shape.suites}"
    suite = f"suite{shape.asked % shape.suites}"
    with tempfile.TemporaryDirectory() as pages:
        page = str(Path(pages) / "page.html")
        # By question: what is asked of a store, and the small stores that hold all that it is about.
        questions: dict[str, tuple[Callable[[str], list[str]], tuple[str, ...]]] = {
            "best": (lambda store: ["best", f"{store}@{asked}"], ("one.db", "suite.db")),
            "compare": (lambda store: ["compare", f"{store}@{before}", f"{store}@{asked}"], ("two.db", "suite.db")),
            "report": (lambda store: ["report", f"{store}@{asked}", "-o", page], ("one.db", "suite.db")),
            "history": (lambda store: ["history", store, "--suite", suite], ("suite.db",)),
        }
        for name, (words, small) in questions.items():
            stores = ("large.db", *small)
            rounds = [{store: cpu_s(words(str(folder / store))) for store in stores} for _ in range(1 + pairs)][1:]
            for other in small:
                ratio, low, high = median_ratio(np.log([one["large.db"] / one[other] for one in rounds]))
                seconds = statistics.median(one["large.db"] for one in rounds)
                yield f"{name:<8} {ratio:.2f} ({low:.2f} to {high:.2f}) times {other:<8} {seconds:.2f} s of a processor"


def cpu_s(words: list[str]) -> float:
    """Seconds of a processor that a command takes in this process."""
    began = time.process_time()
    done = CliRunner().invoke(parabench, words, catch_exceptions=False)
    if done.exit_code not in (0, 1, 3):
        raise SystemExit(f"{' '.join(words)} ended with {done.exit_code}: {done.output}")
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    usual = {"sessions": 1_000, "suites": 100, "cases": 20, "launches": 5, "pairs": 9}
    for name, number in usual.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    shape = Shape(given.sessions, given.suites, given.cases, given.launches)
    write(given.folder, shape)
    print(f"{shape.sessions * shape.cases * shape.launches:,} launches of {shape.sessions:,} sessions", flush=True)
    print(appends(given.folder / "large.db", shape), flush=True)
    for line in answers(given.folder, shape, given.pairs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
