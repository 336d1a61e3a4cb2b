"""Compare the speed of parabench's algorithms with gloo's own.

    python -m benchmarks.collective_speed [LAUNCHES]

`parabench collectives` interleaves the algorithms of an operation in each launch and checks their results. Prints for
each size the other algorithm's time over ours (above 1: ours is faster): the mean over launches with its 95% interval.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.ratios import Ratio, mean_ratio
from parabench.analysis.collectives.bus import good_sizes
from parabench.analysis.session import session_data
from parabench.store.record import MIB
from parabench.store.results import load

KIB = 1024
COMMAND = (sys.executable, "-m", "parabench", "collectives")
# Operation, ours, other, and the goals: {bytes: how many times as fast}.
RING = {64 * KIB: 1 / 1.5} | {size * MIB: 1.0 for size in (1, 4, 16, 64)}
QUESTIONS: tuple[tuple[int, str, str, str, Mapping[int, float]], ...] = (
    *(
        question
        for ranks in (2, 4)
        for question in (
            (ranks, "all_reduce", "ring", "native", RING),
            (ranks, "reduce_scatter", "ring", "native", {64 * MIB: 2.0}),
            (ranks, "all_gather", "ring", "native", {64 * MIB: 2.0}),
        )
    ),
    (4, "all_reduce", "halving_doubling", "ring", {size * KIB: 1.0 for size in (4, 16, 64)}),
)


def options(op: str, algorithms: tuple[str, ...], sizes: Mapping[int, float], launches: int, out: str) -> list[str]:
    """Return the options of `parabench collectives` for these sizes: isolated calls, each after a barrier."""
    words = ["--op", op, "--algorithm", ",".join(algorithms), "--launches", str(launches), "--out", out]
    return [*words, "--min", str(min(sizes)), "--max", str(max(sizes)), "--device", "cpu", "--mode", "latency"]


def ratios(folder: Path, ours: str, other: str) -> Iterator[tuple[int, Ratio]]:
    """Yield each size of the session in a folder with the other algorithm's time over ours."""
    sizes = good_sizes(session_data(load(folder / "results.db")).numbers)
    for size in sorted(sizes["bytes"].unique()):
        rows = sizes[sizes["bytes"] == size]
        seconds = rows.pivot(index="shared_launch", columns="algorithm", values="compared_s")
        yield int(size), mean_ratio(np.log(seconds[other] / seconds[ours]))


def main(launches: int = 10) -> None:
    print(f"{'how many times as fast':<64} ratio (95% interval)")
    for ranks, op, ours, other, goals in QUESTIONS:
        with tempfile.TemporaryDirectory() as name:
            words = [*COMMAND, "--world-size", str(ranks), *options(op, (ours, other), goals, launches, name)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            for size, ratio in ratios(Path(name), ours, other):
                if size in goals:
                    question = f"{op} of {size / MIB:g} MiB, {ranks} ranks, {ours} against {other}"
                    print(f"{question:<64} {ratio}  goal {goals[size]:.2f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
