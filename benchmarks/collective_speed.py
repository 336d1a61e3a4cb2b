"""Compare the speed of parabench's algorithms with gloo's own, and two levels with a flat ring over a slow link.

    python -m benchmarks.collective_speed [LAUNCHES]
    python -m benchmarks.collective_speed link [LAUNCHES]

`parabench collectives` interleaves the algorithms of an operation in each launch and checks their results. Prints for
each size the other algorithm's time over ours (above 1: ours is faster): the mean over launches with its 95% interval.

`link` joins two network namespaces of two ranks (root, `ip`, `tc`) at 1 and 2 Gbit/s. The ring sends 1.5 times the
tensor each way over the link and two levels send it once, so the ratio is 1.5 at most.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.hosts import NoNodes, hosts, rendezvous, run
from benchmarks.ratios import mean_ratio
from parabench.analysis.collectives.bus import good_sizes
from parabench.analysis.session import session_data
from parabench.store.record import MIB
from parabench.store.results import load

KIB = 1024
# {bytes: how many times as fast} of each goal.
RING = {64 * KIB: 1 / 1.5} | {size * MIB: 1.0 for size in (1, 4, 16, 64)}
LARGE = {64 * MIB: 2.0}
LINK = {1 * MIB: 0.0, 4 * MIB: 1.3, 16 * MIB: 1.3}
# Operation, ours, other, and the goals.
QUESTIONS = (
    ("all_reduce", "ring", "native", RING),
    ("reduce_scatter", "ring", "native", LARGE),
    ("all_gather", "ring", "native", LARGE),
)
OF_FOUR = ("all_reduce", "halving_doubling", "ring", {size * KIB: 1.0 for size in (4, 16, 64)})
RATES, PER_NODE = ("1gbit", "2gbit"), 2


def measured(
    question: str, op: str, ours: str, other: str, goals: Mapping[int, float], launches: int, ranks: int, rate: str = ""
) -> None:
    """Run `parabench collectives` with isolated calls, over a link if it has a rate; print the ratio of each size."""
    words = [sys.executable, "-m", "parabench", "collectives", "--op", op, "--algorithm", f"{ours},{other}"]
    words += ["--launches", str(launches), "--world-size", str(ranks), "--device", "cpu", "--mode", "latency"]
    words += ["--min", str(min(goals)), "--max", str(max(goals))]
    with tempfile.TemporaryDirectory() as name:
        if rate:
            words += ["--ranks-per-node", str(PER_NODE), "--iterations", "20", "--warmup", "2", "--out", name]
            with hosts(2, rate) as nodes:
                run(nodes, words + rendezvous(nodes, PER_NODE), Path(name))
        else:
            subprocess.run([*words, "--out", name], check=True, stdout=subprocess.DEVNULL)
        sizes = good_sizes(session_data(load(Path(name) / "results.db")).numbers)
    for size, rows in sizes.groupby("bytes"):
        if size in goals:
            seconds = rows.pivot(index="shared_launch", columns="algorithm", values="compared_s")
            text = f"{question}, {op} of {size / MIB:g} MiB, {ours} against {other}"
            ratio = mean_ratio(np.log(seconds[other] / seconds[ours]))
            print(f"{text:<64} {ratio}  goal {goals[int(size)]:.2f}", flush=True)


def main(launches: int = 10) -> None:
    for ranks, question in [*((ranks, question) for ranks in (2, 4) for question in QUESTIONS), (4, OF_FOUR)]:
        measured(f"{ranks} ranks", *question, launches, ranks)


def over_a_link(launches: int = 5) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    for rate in RATES:
        measured(rate, "all_reduce", "two_level", "ring", LINK, launches, 4, rate)


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["link"]:
            over_a_link(*map(int, sys.argv[2:]))
        else:
            main(*map(int, sys.argv[1:]))
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
