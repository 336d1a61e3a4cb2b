"""The gate on the real thing: does it raise false alarms here, and does it find a slowdown that is there?

    python -m benchmarks.real_gate same [COMPARISONS] [FOLDER]      A/A: `parabench ab` of `quick` with two equal sides
    python -m benchmarks.real_gate again FOLDER ...                 the same launches, compared in other ways
    python -m benchmarks.real_gate slowed [LAUNCHES ...]            one side's step has a real delay of 5 %
    python -m benchmarks.real_gate turns SHARE [GATES] [FOLDER] [OPTION ...]

The first three are of whole launches that alternate. `turns` makes gates of one case in which the sides take turns, as
`parabench ab` does with these options of it, the step of one side longer by a real delay of SHARE (0: none); `again`
then draws more gates from their launches.
Prints one line a comparison, and the totals for docs/explanation/certainty.md. Every store is kept in FOLDER.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from parabench.analysis.compare.gate import Comparison, compare
from parabench.analysis.compare.rule import ALPHA, TOLERANCE, Outcome, Verdict, speed
from parabench.analysis.compare.sides import read_side
from parabench.analysis.stats.ttest import judge
from parabench.analysis.text.compare import line, sentence

GATES = 1000
# Less than `quick` takes by itself: fewer steps, none of them instrumented. Its cases and its 3 launches are all there.
SHORT = ("--rounds", "0", "--warmup", "2", "--steps", "5", "--instrumented", "0")
SLOWED = ("--model", "benchmarks.slowed_model:slowed", "--set", "strategy=ddp", "--set", "algorithm=native")
SLOWED += ("--set", "world_size=2")
# One case, with a short step.
ONE = ("--set", "bucket_mib=25", "--set", "seq_len=32")


def run_ab(folder: Path, a: str, b: str, *options: str) -> Comparison:
    """What `parabench ab` finds; raises RuntimeError when it cannot be read."""
    command = [sys.executable, "-m", "parabench", "ab", "--a", a, "--b", b, *options, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"})
    if done.returncode not in {verdict.exit_code for verdict in Verdict}:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    store = folder / "results.db"
    return compare(*(read_side(f"{store}@ab-{name}", role) for name, role in (("a", "base"), ("b", "candidate"))))


def same(comparisons: int, folder: Path) -> None:
    """A/A comparisons of `quick`, each with launches of its own."""
    alarms = 0
    for number in range(comparisons):
        began = time.perf_counter()
        found = run_ab(folder / f"{number:02d}", "", "", "quick", "--seed", str(number), *SHORT)
        alarms += found.verdict is Verdict.REGRESSION
        seconds = time.perf_counter() - began
        print(f"{number + 1}/{comparisons}: {sentence(found)} ({seconds:.0f} s)", flush=True)
    print(f"false alarms: {alarms} of {comparisons}")


def again(folders: list[Path]) -> None:
    """The launches of `same` in other A/A comparisons: side a of a run with side b of the next, as two sessions apart;
    and gates of blocks drawn from all runs, in each of which the sides are exchanged by lot."""
    stores = [store for folder in folders for store in sorted(folder.glob("*/results.db")) if complete(store)]
    pairs = list(itertools.pairwise(stores))
    alarms = [
        compare(read_side(f"{one}@ab-a", "base"), read_side(f"{other}@ab-b", "candidate")).verdict is Verdict.REGRESSION
        for one, other in pairs
    ]
    print(f"apart: {sum(alarms)} false alarms of {len(alarms)}")

    blocks = [block for store in stores for block in differences(store)]
    spread = np.median([np.std([block[case] for block in blocks]) for case in blocks[0]]) / np.sqrt(2)
    print(f"{len(blocks)} blocks of {len(blocks[0])} cases; a launch of the typical case varies by {spread:.1%}")
    random = np.random.default_rng(0)
    for n in (3, 5, 10):
        failed = 0
        for _ in range(GATES):
            drawn = random.choice(len(blocks), n, replace=False)
            signs = random.choice((-1.0, 1.0), n)
            cases = {
                case: (np.zeros(n), np.array([sign * blocks[at][case] for at, sign in zip(drawn, signs, strict=True)]))
                for case in blocks[0]
            }
            tests = judge(cases, paired=True)
            failed += any(speed(test, TOLERANCE, ALPHA)[0] is Outcome.SLOWER for test in tests.values())
        print(f"{GATES} gates of {n} drawn blocks: {failed} false alarms", flush=True)


def turns(share: float, gates: int, folder: Path, *options: str) -> None:
    """Gates of one case whose sides take turns."""
    found, spent = 0, []
    for number in range(gates):
        began, sides = time.perf_counter(), ("SLOWED_MODEL=0", f"SLOWED_MODEL={share}")
        out = folder / f"{number:03d}"
        seen = run_ab(out, *sides, "bucket_size", *SLOWED, *ONE, "--seed", str(number), *options)
        spent.append(time.perf_counter() - began)
        found += seen.verdict is Verdict.REGRESSION
        load = os.getloadavg()[0]
        print(f"{number + 1}/{gates}: {line(seen.rows[0])} ({spent[-1]:.0f} s, load {load:.1f})", flush=True)
    what = "found" if share else "false alarms"
    print(
        f"a delay of {share:.0%}: {what} {found} of {gates}; {np.median(spent):.0f} s a gate, at most {max(spent):.0f}"
    )


def complete(store: Path) -> bool:
    """Whether both sides were measured to the end, and every launch counts."""
    sides = [read_side(f"{store}@ab-{name}", name) for name in "ab"]
    protocol = sides[0].session.plan["protocol"]
    launches = protocol["launches"] + (protocol["rounds"] > 0)
    return all(side.session.finished_utc and len(side.counted) == launches * len(side.cases) for side in sides)


def differences(store: Path) -> list[dict[str, float]]:
    """Of each block of a run, each case's log-ratio of the sides."""
    base, candidate = (
        read_side(f"{store}@ab-{name}", name).timed.set_index(["repetition", "case"])["step_s"] for name in "ab"
    )
    ratios = np.log(candidate / base).dropna()
    return [dict(block.droplevel("repetition")) for _, block in ratios.groupby(level="repetition")]


def slowed(launches: list[int], folder: Path) -> None:
    """A step that is 5 % longer by a real delay, with more and more launches."""
    for n in launches:
        found = run_ab(
            folder / f"slowed-{n}",
            "SLOWED_MODEL=0",
            "SLOWED_MODEL=0.05",
            "quick",
            *SLOWED,
            "--launches",
            str(n),
            *SHORT,
        )
        caught = sum(row.outcome is Outcome.SLOWER for row in found.rows)
        print(f"{n} launches a side: {caught} of {len(found.judged)} cases caught. {sentence(found)}", flush=True)
        for row in found.rows:
            print("   ", line(row))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "same":
        same(int(rest[0]) if rest else 30, Path(rest[1] if len(rest) > 1 else "parabench-results/same"))
    elif kind == "again":
        again([Path(folder) for folder in rest])
    elif kind == "turns":
        share, gates, folder, *options = [*rest, *("0.05", "60", "parabench-results/turns")[len(rest) :]]
        turns(float(share), int(gates), Path(folder), *options)
    else:
        slowed([int(n) for n in rest] or [5, 10, 20], Path("parabench-results/slowed"))
