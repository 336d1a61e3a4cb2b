"""Count the right answers of `parabench` about real launches with a known delay.

    python -m benchmarks.real gate SHARE [GATES] [OPTION ...]
    python -m benchmarks.real series GAIN [PROPOSALS] [OPTION ...]
    python -m benchmarks.real sets [SESSIONS]

`gate` runs `parabench ab` with these options: one case, whose step in the candidate has a real delay of SHARE (0:
none). `series` makes proposals to one series of `parabench ab --series`; each one saves GAIN of a step. `sets` runs one
`parabench run` of DDP with delays of 0, 1, 2 and 5%, each twice, and cuts it into sessions of 4 launches. Prints a line
for each gate or proposal, then totals. The databases are in parabench-results/real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.ratios import mean_ratio
from benchmarks.slowed_model import DELAYS
from parabench.ab.series import ROUNDS, read_series
from parabench.analysis.compare.gate import Verdict, compare, line, the_verdict
from parabench.analysis.compare.sides import read_sides
from parabench.analysis.session import session_data
from parabench.analysis.stats.contrasts import fit
from parabench.store.results import load

FOLDER = Path("parabench-results/real")
# One case with a short step, which `slowed_model` can delay.
SLOWED = ["bucket_size", "--model", "benchmarks.slowed_model:slowed"]
for axis in ("strategy=ddp", "algorithm=native", "world_size=2", "bucket_mib=25", "seq_len=32"):
    SLOWED += ["--set", axis]
COPIES = ("", "_again")
SUITE = f'''"""Which has no delay?"""
from parabench import sweep
CASES = sweep(
    strategy={tuple(f"benchmarks.slowed_model:{name}{copy}" for name in DELAYS for copy in COPIES)},
    world_size=2,
    seq_len=32,
)
'''


def parabench(*words: str) -> str:
    """Run a command; return its seconds and the load. Raises RuntimeError unless the exit code is one of a gate."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "parabench", *words], capture_output=True, text=True, check=False)
    if done.returncode not in {verdict.exit_code for verdict in Verdict}:
        raise RuntimeError(f"parabench {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return f"{time.perf_counter() - began:.0f} s, load {os.getloadavg()[0]:.1f}"


def ab(base: float, candidate: float, seed: int, *options: str) -> str:
    variants = ["--baseline", f"SLOWED_MODEL={base}", "--candidate", f"SLOWED_MODEL={candidate}"]
    return parabench("ab", *SLOWED, *variants, "--seed", str(seed), *options)


def gate(share: float, gates: int = 60, *options: str) -> None:
    found = 0
    for number in range(gates):
        out = FOLDER / f"gate-{share}-{number:03d}"
        spent = ab(0.0, share, number, *options, "--out", str(out))
        sides = read_sides(*(f"{out}/results.db@ab-{name}" for name in "ab"))
        seen = compare(*sides)
        found += the_verdict(seen)["verdict"] is Verdict.REGRESSION
        print(f"{number + 1}/{gates}: {line(seen.tables['cases'].iloc[0])} ({spent})", flush=True)
    print(f"a delay of {share:.0%}: {'found' if share else 'false alarms'} {found} of {gates}")


def series(gain: float = 0.02, proposals: int = 10, *options: str) -> None:
    folder = FOLDER / f"series-{gain}"
    for number in range(1, proposals + 1):
        spent = ab(gain / (1 - gain), 0.0, number, "--series", str(folder), *options)
        there = read_series(folder)
        assert there is not None
        mine = there.proposals[-1]
        text = f"{'accepted' if mine.accept else 'rejected'}: {mine.why} ({mine.pairs} pairs of {ROUNDS} rounds"
        print(f"{number}/{proposals}: {text}, {spent})", flush=True)


def sets(sessions: int = 50, launches: int = 4, rounds: int = 12) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    suite, out = FOLDER / "suite.py", FOLDER / "sets"
    suite.write_text(SUITE)
    options = ["--rounds", str(rounds), "--instrumented", "0", "--launches", str(sessions * launches)]
    parabench("run", str(suite), *options, "--out", str(out))
    timed = session_data(load(out / "results.db")).timed
    timed = timed[timed["in_turns"]]
    timed = timed.assign(name=timed["strategy"].str.rpartition(":")[2])
    name_of = dict(zip(timed["case"], timed["name"], strict=True))
    held = apart = 0
    found: dict[str, list[float]] = {name: [] for name in DELAYS}
    for first in range(1, sessions * launches, launches):
        own = timed[timed["repetition"].between(first, first + launches - 1)]
        effects = fit(own)
        means = {name_of[case]: mean for case, mean in effects.means.items()}
        near = {name_of[case] for case in effects.indistinguishable(min(effects.cases, key=effects.means.__getitem__))}
        held += sum(f"none{copy}" in near for copy in COPIES)
        default = np.mean([means[f"none{copy}"] for copy in COPIES])
        logs = {name: np.log(one["step_s"].to_numpy()) for name, one in own.groupby("name")}
        for name, delay in DELAYS.items():
            found[name].append(np.mean([means[f"{name}{copy}"] for copy in COPIES]) - default - np.log1p(delay))
            copies = mean_ratio(logs[f"{name}{COPIES[1]}"] - logs[name])
            apart += not copies.low <= 1 <= copies.high
    print(f"a configuration without a delay is in the set of the best in {held} of {len(COPIES) * sessions}")
    for name, delay in DELAYS.items():
        if delay:
            print(f"a delay of {delay:.0%}: estimate / truth {mean_ratio(found[name])}")
    print(f"two copies differ significantly in {apart} of {len(DELAYS) * sessions} pairs")


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "sets":
        sets(*map(int, rest))
    else:
        {"gate": gate, "series": series}[kind](*map(float, rest[:1]), *map(int, rest[1:2]), *rest[2:])
