"""The ways in which single collectives are timed, and how many calls lie between two readings of the clock.

`throughput` is nccl-tests' way (src/common.cu, BenchTime: start all calls, complete them, divide by their number): the
cost of a call among others of its kind, whose latencies overlap as far as the backend lets them. `latency` is that of a
call alone, after a barrier: what a training sees that waits for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

THROUGHPUT, LATENCY = "throughput", "latency"
MODES = (THROUGHPUT, LATENCY)

# Throughput of calls that a CUDA graph replays, so that nothing of what the host does to start each is in it.
GRAPH = "throughput, CUDA graph"

_IN_WORDS = {
    THROUGHPUT: "calls back to back, as nccl-tests does",
    GRAPH: "calls back to back, captured in a CUDA graph, as nccl-tests -G does",
    LATENCY: "isolated calls, each after a barrier",
}


def in_words(timing: str) -> str:
    """How a timing is said, behind "timed: "; one that only a newer parabench knows is its name."""
    return _IN_WORDS.get(timing, timing)


# Of a throughput launch's size and form: a batch that is waited for, which tells how long a call takes, and one that
# runs on into the timed ones.
WARMUP_BATCHES = 2

# nccl-tests' default number of calls, and the fewest that are timed here; a captured graph has as many.
FEWEST_CALLS = 20

# No more between two readings: what a very quick call needs to fill the time box is not worth the events in flight.
MOST_IN_A_BATCH = 10_000

# On CUDA the batch before the timed ones goes on for so long, and for the first size of a launch longer: an idle device
# takes that to raise its clocks.
RUN_IN_S, FIRST_RUN_IN_S = 0.05, 1.0


def calls_in(seconds: float, call_s: float) -> int:
    """How many calls of `call_s` seconds fill so many seconds, within what a batch may have."""
    wanted = seconds / call_s if call_s > 0 else math.inf
    return max(1, round(min(wanted, MOST_IN_A_BATCH)))


def in_whole_graphs(calls: int, graph: bool) -> int:
    """As many calls, or with `graph` as few more as whole graphs have."""
    return -(-calls // FEWEST_CALLS) * FEWEST_CALLS if graph else calls


def timing_of(protocol: Mapping[str, Any]) -> str:
    """What the numbers of a stored protocol are: THROUGHPUT, GRAPH, or LATENCY, which was the only way at first."""
    return GRAPH if protocol.get("graph") else str(protocol.get("mode", LATENCY))
