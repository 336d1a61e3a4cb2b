"""What do two levels gain where the link between nodes is slow? Two nodes of two ranks, joined by 1 and 2 Gbit/s.

    python -m benchmarks.slow_link [PAIRS]

Nodes are network namespaces, so it needs root, `ip` and `tc`. All algorithms run in the same processes in turn, and
every result is compared with the exact one. A call takes as long as its slowest rank; printed are medians, and the
median of the ratios ring / two_level of calls next to each other, with its 95% interval. Over the link the flat ring
sends 1.5 times the tensor each way and two_level once, so the ratio is 1.5 at most.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.hosts import Host, NoNodes, hosts
from benchmarks.slow_link_rank import Job
from parabench.store.record import MIB

RATES = ("1gbit", "2gbit")
ALGORITHMS = ("ring", "two_level", "two_level(ring,tree)", "halving_doubling", "tree", "native")
SIZES_MIB = (1, 4, 16, 25)
RANKS_PER_NODE = 2
GOAL, FROM_MIB = 1.3, 4

# In a namespace of its own every port is free.
PORT = 29500
DEADLINE_S = 280.0


class RankFailed(Exception):
    """A rank ended badly, or not in time."""


def measure(nodes: tuple[Host, ...], algorithms: tuple[str, ...], sizes: tuple[int, ...], pairs: int) -> list[Any]:
    """For each rank and size what `slow_link_rank.measure` returns. Raises RankFailed; no rank is left then."""
    world_size = RANKS_PER_NODE * len(nodes)
    job = Job(nodes[0].address, PORT, world_size, RANKS_PER_NODE, algorithms, sizes, pairs)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "job"
        path.write_text(json.dumps(asdict(job)))
        ranks = []
        for rank in range(world_size):
            errors = stack.enter_context((folder / f"{rank}.err").open("wb"))
            node = nodes[rank // RANKS_PER_NODE]
            words = [sys.executable, "-m", "benchmarks.slow_link_rank", str(path), str(rank)]
            environment = {"GLOO_SOCKET_IFNAME": node.interface, "OMP_NUM_THREADS": "1"}
            ranks.append(node.start(words, environment=environment, errors=errors))
            stack.callback(end, ranks[-1])
        failed = wait(ranks)
        if failed is not None:
            said = (folder / f"{failed}.err").read_text(errors="replace").strip().splitlines()
            code = ranks[failed].returncode
            how = f"has not ended after {DEADLINE_S:g} s" if code is None else f"ended with exit code {code}"
            raise RankFailed(f"rank {failed} {how}: {said[-1] if said else 'it said nothing'}")
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


def wait(ranks: list[subprocess.Popen[str]]) -> int | None:
    """The first rank that fails, or that is still there after the deadline; None when all succeed."""
    until = time.monotonic() + DEADLINE_S
    while running := [rank for rank, process in enumerate(ranks) if process.poll() is None]:
        for rank, process in enumerate(ranks):
            if process.returncode:
                return rank
        if time.monotonic() > until:
            return running[0]
        time.sleep(0.05)
    return next((rank for rank, process in enumerate(ranks) if process.returncode), None)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def table(rate: str, seen: list[Any], pairs: int) -> list[str]:
    """The lines to print of what `measure` returned."""
    lines = [
        f"{rate}, {len(seen)} ranks on 2 nodes, {pairs} calls each: milliseconds (times the tensor sent over the link)",
        f"{'MiB':>4}" + "".join(f"{name:>23}" for name in ALGORITHMS) + "   ring / two_level",
    ]
    for at, size in enumerate(SIZES_MIB):
        cells, slowest = "", {}
        for name in ALGORITHMS:
            here = [rank[at][name] for rank in seen]
            if wrong := sum(each["wrong"] for each in here):
                raise RankFailed(f"{name}, {size} MiB: {wrong} elements are wrong")
            slowest[name] = np.array([each["s"] for each in here]).max(axis=0)
            sent = max(np.median(each["bytes"]) for each in here) / (size * MIB)
            cells += f"{1e3 * np.median(slowest[name]):>15.1f} ({sent:5.2f})"
        ratios = slowest["ring"] / slowest["two_level"]
        low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
        reached = "" if size < FROM_MIB else "reached" if np.median(ratios) >= GOAL else "missed"
        lines.append(f"{size:>4}{cells}   {np.median(ratios):.2f} ({low:.2f} to {high:.2f}) {reached}")
    return lines


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    # Whoever ends this process with a signal leaves no namespace behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for rate in RATES:
            with hosts(2, rate) as nodes:
                seen = measure(nodes, ALGORITHMS, tuple(size * MIB for size in SIZES_MIB), pairs)
            print(*table(rate, seen, pairs), "", sep="\n", flush=True)
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
    except RankFailed as why:
        print(why, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"goal: {GOAL} or more from {FROM_MIB} MiB on")


if __name__ == "__main__":
    main()
