"""Compare two levels with a flat ring over a slow link between two nodes of two ranks, at 1 and 2 Gbit/s.

    python -m benchmarks.slow_link [LAUNCHES]

Nodes are network namespaces (root, `ip`, `tc`). `parabench collectives` interleaves both algorithms in each launch and
checks their results. Prints the time of the ring over that of two levels: the mean over launches with its 95% interval.
The ring sends 1.5 times the tensor each way over the link and two levels send it once, so the ratio is 1.5 at most.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.collective_speed import COMMAND, options, ratios
from benchmarks.hosts import NoNodes, hosts, rendezvous, run
from parabench.store.record import MIB

RATES, ALGORITHMS, PER_NODE = ("1gbit", "2gbit"), ("ring", "two_level"), 2
# {bytes: the least ratio that is expected}
GOALS = {1 * MIB: 0.0, 4 * MIB: 1.3, 16 * MIB: 1.3}


def main(launches: int = 5) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    for rate in RATES:
        with tempfile.TemporaryDirectory() as name:
            words = [*COMMAND, *options("all_reduce", ALGORITHMS, GOALS, launches, name), "--world-size", "4"]
            words += ["--ranks-per-node", str(PER_NODE), "--iterations", "20", "--warmup", "2"]
            with hosts(2, rate) as nodes:
                run(nodes, words + rendezvous(nodes, PER_NODE), Path(name))
            for size, ratio in ratios(Path(name), "two_level", "ring"):
                print(f"{rate}, {size / MIB:g} MiB: ring / two_level {ratio}  goal {GOALS[size]:.1f}", flush=True)


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
