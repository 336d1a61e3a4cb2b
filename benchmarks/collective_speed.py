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
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.hosts import NoNodes, hosts, rendezvous, run
from benchmarks.ratios import Ratio, mean_ratio
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


def command(op: str, algorithms: str, sizes: Mapping[int, float], launches: int, ranks: int, out: str) -> list[str]:
    """Return `parabench collectives` for these sizes: isolated calls, each after a barrier."""
    words = [sys.executable, "-m", "parabench", "collectives", "--op", op, "--algorithm", algorithms, "--out", out]
    words += ["--launches", str(launches), "--world-size", str(ranks), "--device", "cpu", "--mode", "latency"]
    return [*words, "--min", str(min(sizes)), "--max", str(max(sizes))]


def ratios(folder: Path, ours: str, other: str) -> Iterator[tuple[int, Ratio]]:
    """Yield each size of the session in a folder with the other algorithm's time over ours."""
    sizes = good_sizes(session_data(load(folder / "results.db")).numbers)
    for size, rows in sizes.groupby("bytes"):
        seconds = rows.pivot(index="shared_launch", columns="algorithm", values="compared_s")
        yield int(size), mean_ratio(np.log(seconds[other] / seconds[ours]))


def shown(question: str, folder: str, ours: str, other: str, goals: Mapping[int, float]) -> None:
    for size, ratio in ratios(Path(folder), ours, other):
        if size in goals:
            text = f"{question} of {size / MIB:g} MiB, {ours} against {other}"
            print(f"{text:<64} {ratio}  goal {goals[size]:.2f}", flush=True)


def main(launches: int = 10) -> None:
    questions = [(ranks, question) for ranks in (2, 4) for question in QUESTIONS]
    for ranks, (op, ours, other, goals) in [*questions, (4, OF_FOUR)]:
        with tempfile.TemporaryDirectory() as name:
            words = command(op, f"{ours},{other}", goals, launches, ranks, name)
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            shown(f"{ranks} ranks, {op}", name, ours, other, goals)


def over_a_link(launches: int = 5) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    for rate in RATES:
        with tempfile.TemporaryDirectory() as name:
            words = command("all_reduce", "ring,two_level", LINK, launches, 4, name)
            words += ["--ranks-per-node", str(PER_NODE), "--iterations", "20", "--warmup", "2"]
            with hosts(2, rate) as nodes:
                run(nodes, words + rendezvous(nodes, PER_NODE), Path(name))
            shown(f"{rate}, all_reduce", name, "two_level", "ring", LINK)


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["link"]:
            over_a_link(*map(int, sys.argv[2:]))
        else:
            main(*map(int, sys.argv[1:]))
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
