"""Define how a launch of `parabench collectives` times its calls, and the order of the calls.

`throughput` starts all calls and divides the time by their number, as nccl-tests does (src/common.cu, BenchTime).
`latency` times isolated calls, each after a barrier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta

from parabench.errors import UsageError
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.protocol import DEADLINE, LAUNCHES_HELP, Deadline
from parabench.plan.schedule import Rounds, orders
from parabench.records import Field, Record
from parabench.store.record import MIB, Phase

THROUGHPUT, LATENCY = "throughput", "latency"
MODES = (THROUGHPUT, LATENCY)

# Throughput of calls that a CUDA graph replays, without the host's work to start each.
GRAPH = "throughput, CUDA graph"

_IN_WORDS = {
    THROUGHPUT: "calls back to back, as nccl-tests does",
    GRAPH: "calls back to back, captured in a CUDA graph, as nccl-tests -G does",
    LATENCY: "isolated calls, each after a barrier",
}

# The uncounted batches of each size and form in throughput mode: the first shows the duration of a call, and the second
# continues into the timed batches.
WARMUP_BATCHES = 2
# The default number of calls in nccl-tests. Here it is the smallest number, and the number in a captured graph.
FEWEST_CALLS = 20
# The most calls between two readings. More would need too many pending events, without a better result.
MOST_IN_A_BATCH = 10_000
# The default number of interleaved rounds at a size and form: each round of a case has one batch.
ROUNDS = 10
# The time of the discarded calls after a switch between cases. There are never more of them than warm-up calls.
SETTLE_S = 0.005
# On CUDA, the batch before the timed ones takes this long, and longer for the first size of a launch: an idle device
# needs the time to raise its clocks.
RUN_IN_S, FIRST_RUN_IN_S = 0.05, 1.0


def in_words(timing: str) -> str:
    """Return the description of a timing such as THROUGHPUT. An unknown name is returned unchanged."""
    return _IN_WORDS.get(timing, timing)


def calls_in(seconds: float, call_s: float) -> int:
    """Return the number of calls of `call_s` seconds that fill `seconds`, from 1 to MOST_IN_A_BATCH."""
    wanted = seconds / call_s if call_s > 0 else math.inf
    return max(1, round(min(wanted, MOST_IN_A_BATCH)))


def dealt_out(readings: int, rounds: int) -> list[int]:
    """Divide the timed `readings` of a case evenly among `rounds`. Return the number of readings in each round.

    No round is empty, so there may be fewer rounds. With 0 rounds, as in a separate launch, there is one.
    """
    rounds = max(1, min(rounds, readings))
    return [readings * (number + 1) // rounds - readings * number // rounds for number in range(rounds)]


def timing_of(protocol: Mapping[str, Any]) -> str:
    """Return THROUGHPUT, GRAPH or LATENCY for a stored protocol. Without a mode, it is LATENCY."""
    return GRAPH if protocol.get("graph") else str(protocol.get("mode", LATENCY))


Calls = Annotated[int, Meta(ge=1, le=100_000)]


class Slot(NamedTuple):
    """A timed call or batch of calls on a buffer of `bytes`. `iteration` counts from 0 within size, form and phase."""

    bytes: int
    in_place: bool
    phase: Phase
    iteration: int


class CollectiveProtocol(Record, frozen=True, kw_only=True):
    """The number of calls in each launch, per size and form. The first `warmup` calls do not count."""

    # - Throughput: `batches` of `iterations` calls back to back, with a clock reading between batches. By default, all
    #   batches take `measure_s` seconds, and have at least FEWEST_CALLS. `graph` replays them from CUDA graphs.
    # - Latency: `iterations` calls, each after a barrier. By default, they move MOST_MOVED_BYTES.
    # - With `rounds`, cases share launches (`stages`), and each case's batches or calls are divided among the rounds.

    kind: ClassVar[str] = "collectives"
    # The first repetition whose cases may share launches.
    first_shared: ClassVar[int] = 0
    # Only training runs race, and have A/A tests.
    races: ClassVar[bool] = False
    aa_test: ClassVar[bool] = False
    budget_s: ClassVar[float | None] = None
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
            help="Throughput: time per size and launch. [default: 0.25, at least 20 calls]",
        ),
    ] = 0.25
    batches: Annotated[
        Calls, Field(option="--batches", help="Throughput: batches of calls per size, each timed. [default: 10]")
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
    # A new plan has ROUNDS by default. A stored plan without this field has separate launches.
    rounds: Annotated[
        Rounds,
        Field(
            option="--rounds",
            help=f"Interleaved rounds per size in a shared launch; 0: separate launches. [default: {ROUNDS}]",
        ),
    ] = 0
    deadline_s: Annotated[Deadline | None, DEADLINE] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.graph and self.mode == LATENCY:
            raise UsageError("graph replays calls back to back, and mode latency times isolated ones; drop one of them")

    @property
    def repetitions(self) -> int:
        """Return the number of planned repetitions."""
        return self.launches

    @property
    def takes_turns(self) -> bool:
        """Return whether cases share launches."""
        return self.rounds > 0

    def alone(self) -> CollectiveProtocol:
        """Return the protocol of a launch of one case."""
        return self.replace(rounds=0)

    def shared(self, *_: Any) -> CollectiveProtocol:
        """Return the protocol of a launch of several cases."""
        return self

    def most_rounds(self, cases: Sequence[CollectiveCase]) -> int:
        """Return the largest number of interleaved rounds of any size and form.

        The result is 0 if no two cases differ only in their algorithm.
        """
        together = [stage for stage in stages(self, cases) if len(stage.places) > 1]
        return max((len(stage.turns) // len(stage.places) for stage in together), default=0)

    @property
    def timing(self) -> str:
        """Return THROUGHPUT, LATENCY or GRAPH. Results with different timings are not compared."""
        return GRAPH if self.graph else self.mode

    def calls_in_a_batch(self, call_s: float) -> int:
        """Return the number of calls between two clock readings in throughput mode, for calls of `call_s` seconds."""
        calls = self.iterations
        if calls is None:
            calls = max(calls_in(self.measure_s / self.batches, call_s), -(-FEWEST_CALLS // self.batches))
        return -(-calls // FEWEST_CALLS) * FEWEST_CALLS if self.graph else calls

    def timed_at(self, size: int) -> int:
        """Return the number of timed readings of a launch at `size` bytes: batches, or calls in latency mode."""
        if self.mode == THROUGHPUT:
            return self.batches
        return self.iterations or max(self.FEWEST, min(self.MOST, self.MOST_MOVED_BYTES // size))

    def settling_calls(self, call_s: float) -> int:
        """Return the number of discarded calls after a switch between cases, for calls of `call_s` seconds."""
        return min(self.warmup, calls_in(SETTLE_S, call_s))

    def slots(self, size: int, in_place: bool) -> list[Slot]:
        """Return the timed calls or batches of one size and form, in order. They are equal on every rank."""
        counts = {Phase.WARMUP: self.warmup if self.mode == LATENCY else WARMUP_BATCHES}
        counts[Phase.MEASURE] = self.timed_at(size)
        return [Slot(size, in_place, phase, number) for phase, count in counts.items() for number in range(count)]

    def expected_s(self, case: CollectiveCase, bytes_per_s: float) -> float:
        """Return the longest duration of a launch of `case` in seconds, for buffers that travel at `bytes_per_s`."""
        seconds = FIRST_RUN_IN_S if self.mode == THROUGHPUT else 0.0
        for size, in_place in case.turns():
            call_s = size / bytes_per_s
            turns = len(dealt_out(self.timed_at(size), self.rounds)) if self.rounds else 0
            if self.mode == LATENCY:
                seconds += (len(self.slots(size, in_place)) + turns) * call_s
                continue
            calls = WARMUP_BATCHES * self.warmup + self.batches * self.calls_in_a_batch(call_s)
            settling = max(0, turns - 1) * self.settling_calls(call_s)
            # If calls are faster, there are more of them, until they fill `measure_s`.
            seconds += (calls + settling) * call_s + (self.measure_s if self.iterations is None else 0.0) + RUN_IN_S
        return seconds


# -- the order of measurements in a launch -----------------------------------------------------------------------------

# Cases that differ only in their algorithm are interleaved at each size and form. Rounds are then short, and the cases
# use the same buffers. Cases with another operation or number of ranks come before or after.


@dataclass(frozen=True, slots=True)
class Stage:
    """The measurement of one size and form, with the indexes of the interleaved cases (`places`).

    Each case is checked and has `warmup` readings. Then come the `turns`, pairs (index, number of readings), and a
    second check.
    """

    bytes: int
    in_place: bool
    places: tuple[int, ...]
    warmup: int
    turns: tuple[tuple[int, int], ...]


def stages(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> list[Stage]:
    """Return the stages of a launch of `cases`, in order. They are equal on every rank and in the driver."""
    alike: dict[tuple[object, int, bool], list[int]] = {}
    for place, case in enumerate(cases):
        kind = case.op, case.world_size, case.dtype, case.redop
        for size, in_place in case.turns():
            alike.setdefault((kind, size, in_place), []).append(place)
    # If calls are back to back, the second warm-up reading is the start of the first turn.
    warmup, run_in = (protocol.warmup, 0) if protocol.mode == LATENCY else (1, 1)
    found = []
    for number, ((_, size, in_place), places) in enumerate(alike.items()):
        dealt = dealt_out(protocol.timed_at(size), protocol.rounds if len(places) > 1 else 1)
        # The number of the stage seeds the orders. They still differ between repetitions, because `cases` do.
        rounds = zip(orders(len(places), len(dealt), number), dealt, strict=True)
        turns = [
            (places[at], readings + (run_in if first == 0 else 0))
            for first, (order, readings) in enumerate(rounds)
            for at in order
        ]
        found.append(Stage(size, in_place, tuple(places), warmup, tuple(turns)))
    return found


def rows(protocol: CollectiveProtocol, cases: Sequence[CollectiveCase]) -> Iterator[tuple[int, Slot | None]]:
    """Yield (index of the case, slot) for each row of timestamps that a rank records, in order.

    The slot is None if the rank prepares buffers or checks results.
    """
    yield 0, None
    for stage in stages(protocol, cases):
        slots = {place: iter(protocol.slots(stage.bytes, stage.in_place)) for place in stage.places}
        for place, readings in (*((place, stage.warmup) for place in stage.places), *stage.turns):
            for _ in range(readings):
                yield place, next(slots[place])
        yield from ((place, None) for place in stage.places)
