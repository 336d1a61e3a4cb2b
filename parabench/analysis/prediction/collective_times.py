"""How long a collective of any size takes, from the sizes at which it was measured.

Between two measured sizes the logarithm of the time is linear in that of the size: of public tables of NCCL's, every
second size held out, that is 3 to 4 % off in the median, where a line of latency and bandwidth is 7 to 9 % off. Below
the smallest size a call takes what that takes; beyond the largest its bytes count as the last measured ones do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parabench.analysis.collectives.bus import good_sizes, launch_sizes
from parabench.analysis.session import Session
from parabench.analysis.stats.quantiles import Numbers
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.plan.case import ranks_in_words
from parabench.plan.collective_case import size_text
from parabench.store.results import Results

# What messages are cut to where nothing says (`collectives.wire`).
PIECE_BYTES = 2 << 20

# How many times the largest measured size is still told of.
BEYOND = 8


@dataclass(frozen=True, slots=True)
class Collective:
    """An operation by an algorithm among so many ranks, as many of them on each of the nodes."""

    op: str
    algorithm: str
    world_size: int
    nodes: int = 1

    def __str__(self) -> str:
        return f"{self.op} {self.algorithm} among {ranks_in_words(self.world_size, self.nodes)}"


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """What one collective took: ascending sizes in bytes, and the seconds of a call, over so many launches, of whose
    times the logarithms have these variances by size (none of a single launch). Its messages are cut to
    `piece_bytes`, on `backend`."""

    collective: Collective
    sizes: Numbers
    seconds: Numbers
    launches: int
    variances: Mapping[int, float] = field(default_factory=dict)
    piece_bytes: int = PIECE_BYTES
    backend: str = "gloo"

    @property
    def schedule(self) -> str:
        """The algorithm by whose rounds it goes (`schedule.rounds`): NCCL's own is taken to be a ring."""
        ring = self.backend == accelerator.BACKEND and self.collective.algorithm == "native"
        return "ring" if ring else self.collective.algorithm

    def __call__(self, sizes: Numbers) -> Numbers:
        """Seconds of calls of these sizes; infinite for what is more than BEYOND times what was measured."""
        known = np.exp(np.interp(np.log(np.maximum(sizes, 1.0)), np.log(self.sizes), np.log(self.seconds)))
        beyond = sizes / self.sizes[-1]
        found: Numbers = np.where(beyond > BEYOND, np.inf, known * np.maximum(beyond, 1.0))
        return found

    def require(self, size: int) -> None:
        """Raise UsageError for a size that nothing is known of."""
        largest = int(self.sizes[-1])
        if size > BEYOND * largest:
            asked = size_text(size)
            raise UsageError(
                f"{self.collective} was measured up to {size_text(largest)}, and {asked} is more than "
                f"{BEYOND} times as much; measure it: {command(self.collective)} --max {asked.replace(' ', '')}"
            )


def command(collective: Collective) -> str:
    """What measures a collective."""
    nodes = f" --nnodes {collective.nodes} (on each node)" if collective.nodes > 1 else ""
    return (
        f"parabench collectives --op {collective.op} --algorithm {collective.algorithm} "
        f"--world-size {collective.world_size}{nodes}"
    )


def measured_times(results: Results, sessions: Sequence[Session]) -> dict[Collective, MeasuredTimes]:
    """What each collective took in the newest of these sessions, oldest first, that measured it in float32. A size's
    time is the mean on the log scale over launches, of a launch the median of its batches: a mean of all calls is what
    a neighbour's burst makes of it."""
    found: dict[Collective, MeasuredTimes] = {}
    for session in sessions:
        good = good_sizes(launch_sizes(results, session))
        good = good[(good["dtype"] == "float32") & good["redop"].isin(["sum", "none"])]
        for _, rows in good.groupby(["op", "algorithm", "world_size", "nodes"]):
            first = rows.iloc[0]
            collective = Collective(first["op"], first["algorithm"], int(first["world_size"]), int(first["nodes"]))
            logs = np.log(rows["p50_s"]).groupby(rows["bytes"])
            means = logs.mean().sort_index()
            pieces = rows["piece_bytes"].dropna()
            found[collective] = MeasuredTimes(
                collective,
                means.index.to_numpy(dtype=float),
                np.exp(means.to_numpy(dtype=float)),
                int(rows["launch_id"].nunique()),
                {int(str(size)): float(each) for size, each in logs.var(ddof=1).dropna().items()},
                int(pieces.iloc[0]) if len(pieces) else PIECE_BYTES,
                str(first["backend"]),
            )
    return found
