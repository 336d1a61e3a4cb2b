"""How each launch of `parabench collectives` times the calls.

`throughput` is nccl-tests' way (src/common.cu, BenchTime: start all calls, complete them, divide by their number): the
cost of a call among others of its kind, whose latencies overlap as far as the backend lets them. `latency` is that of a
call alone, after a barrier: what a training sees that waits for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta

from parabench.errors import UsageError
from parabench.plan.protocol import DEADLINE, LAUNCHES_HELP, Deadline, Rounds
from parabench.records import Field, Record
from parabench.store.record import MIB, Phase

if TYPE_CHECKING:
    from parabench.plan.collective_case import CollectiveCase

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

# How many turns each case has at a size and form in a launch that cases share, where nobody says: by default each is of
# one batch.
ROUNDS = 10

# The calls that settle what the case before left behind fill so many seconds, but are no more than those of warm-up.
SETTLE_S = 0.005

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


def dealt_out(readings: int, rounds: int) -> list[int]:
    """How many of a case's timed readings each of its turns has: of so many `rounds`, or of fewer with one each; of 0,
    of a launch that a case has to itself, it is one turn."""
    rounds = max(1, min(rounds, readings))
    return [readings * (number + 1) // rounds - readings * number // rounds for number in range(rounds)]


def timing_of(protocol: Mapping[str, Any]) -> str:
    """What the numbers of a stored protocol are: THROUGHPUT, GRAPH, or LATENCY, which was the only way at first."""
    return GRAPH if protocol.get("graph") else str(protocol.get("mode", LATENCY))


Calls = Annotated[int, Meta(ge=1, le=100_000)]


class Slot(NamedTuple):
    """What a clock is read around, a call or a batch of them: the size of the whole buffer in bytes, the form, the
    phase, and its number within them."""

    bytes: int
    in_place: bool
    phase: Phase
    iteration: int


class CollectiveProtocol(Record, frozen=True, kw_only=True):
    """How each launch measures, per size and form. `deadline_s` as in `protocol.Protocol`.

    Throughput: `batches` of calls back to back, with a clock reading between batches. A batch has `iterations` calls;
    None makes them so many that all batches take `measure_s` seconds, at least FEWEST_CALLS in all, the same number on
    all ranks. `graph` replays them from CUDA graphs.

    Latency: `iterations` calls, each after a barrier. None chooses them by size alone: as many as carry
    MOST_MOVED_BYTES, within FEWEST and MOST.

    Either comes after `warmup` calls, which are kept apart.

    With `rounds` cases share launches (`workloads.collective_turns`), and batches or calls are dealt out to so many
    turns, or to one each where they are fewer; with 0 each case has launches of its own, and all of them follow one
    another.
    """

    FEWEST: ClassVar[int] = 20
    MOST: ClassVar[int] = 200
    MOST_MOVED_BYTES: ClassVar[int] = 256 * MIB

    mode: Annotated[
        str,
        Field(
            choices=MODES,
            option="--mode",
            metavar="MODE",
            help="throughput: calls back to back, as nccl-tests; latency: each after a barrier. [default: throughput]",
        ),
    ] = THROUGHPUT
    graph: Annotated[bool, Field(option="--graph", help="Capture calls in a CUDA graph, as nccl-tests -G does.")] = (
        False
    )
    launches: Annotated[Calls, Field(option="--launches", help=f"{LAUNCHES_HELP} [default: 3]")] = 3
    measure_s: Annotated[
        Deadline,
        Field(
            option="--measure-seconds",
            metavar="SECONDS",
            help="Throughput: timed seconds per size and launch. [default: 0.25, at least 20 calls]",
        ),
    ] = 0.25
    batches: Annotated[
        Calls,
        Field(option="--batches", help="Throughput: batches of calls per size, each timed. [default: 10]"),
    ] = 10
    iterations: Annotated[
        Calls | None,
        Field(
            option="--iterations",
            help="Timed calls per batch, instead of --measure-seconds; in mode latency per size. "
            "[default: 20 to 200, fewer for large sizes]",
        ),
    ] = None
    warmup: Annotated[
        Calls, Field(option="--warmup", help="Warm-up calls, excluded from the statistics. [default: 5]")
    ] = 5
    # Sessions that were planned before there were turns have none.
    rounds: Annotated[
        Rounds,
        Field(
            option="--rounds",
            help="Turns of each case per size in a launch that cases share; 0: each has launches of its own. "
            f"[default: {ROUNDS}]",
        ),
    ] = 0
    deadline_s: Annotated[Deadline | None, DEADLINE] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.graph and self.mode == LATENCY:
            raise UsageError("graph replays calls back to back, and mode latency times isolated ones; drop one of them")

    @property
    def blocks(self) -> int:
        """How many blocks are planned."""
        return self.launches

    @property
    def takes_turns(self) -> bool:
        """Whether cases share launches."""
        return self.rounds > 0

    def alone(self) -> CollectiveProtocol:
        """The same for a launch that a case has to itself."""
        return self.replace(rounds=0)

    @property
    def timing(self) -> str:
        """What its numbers are: THROUGHPUT, LATENCY or GRAPH. Numbers of different ones are not compared."""
        return GRAPH if self.graph else self.mode

    def iterations_at(self, size: int) -> int:
        """Timed calls at `size` bytes in latency mode."""
        if self.iterations is not None:
            return self.iterations
        return max(self.FEWEST, min(self.MOST, self.MOST_MOVED_BYTES // size))

    def calls_in_a_batch(self, call_s: float) -> int:
        """Calls between two readings in throughput mode, where one takes `call_s` seconds."""
        if self.iterations is not None:
            return in_whole_graphs(self.iterations, self.graph)
        calls = max(calls_in(self.measure_s / self.batches, call_s), -(-FEWEST_CALLS // self.batches))
        return in_whole_graphs(calls, self.graph)

    def timed_at(self, size: int) -> int:
        """How many timed readings a launch has at `size` bytes: of batches, or of calls."""
        return self.iterations_at(size) if self.mode == LATENCY else self.batches

    def settling_calls(self, call_s: float) -> int:
        """Calls that precede a turn and do not count, where one takes `call_s` seconds."""
        return min(self.warmup, calls_in(SETTLE_S, call_s))

    def slots(self, size: int, in_place: bool) -> list[Slot]:
        """The readings of one size and form, in their order; the same on every rank."""
        counts = (self.warmup if self.mode == LATENCY else WARMUP_BATCHES, self.timed_at(size))
        return [
            Slot(size, in_place, phase, iteration)
            for phase, count in zip((Phase.WARMUP, Phase.MEASURE), counts, strict=True)
            for iteration in range(count)
        ]

    def schedule(self, case: CollectiveCase) -> list[Slot]:
        """Every reading of a launch, in its order: what a rank's n-th mark is of."""
        return [slot for size, in_place in case.turns() for slot in self.slots(size, in_place)]

    def expected_s(self, case: CollectiveCase, bytes_per_s: float) -> float:
        """How long a launch takes at most, in seconds, where the calls' buffers travel at `bytes_per_s`."""
        seconds = 0.0
        for size, in_place in case.turns():
            call_s = size / bytes_per_s
            turns = len(dealt_out(self.timed_at(size), self.rounds)) if self.rounds else 0
            if self.mode == LATENCY:
                seconds += (len(self.slots(size, in_place)) + turns) * call_s
                continue
            calls = WARMUP_BATCHES * self.warmup + self.batches * self.calls_in_a_batch(call_s)
            settling = max(0, turns - 1) * self.settling_calls(call_s)
            # Where calls are quicker than that, there are as many more.
            seconds += (calls + settling) * call_s + (self.measure_s if self.iterations is None else 0.0) + RUN_IN_S
        return seconds if self.mode == LATENCY else seconds + FIRST_RUN_IN_S
