"""What is recorded: samples, launches, findings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from parabench.errors import UsageError
from parabench.records import Record

MIB = 2**20
GB = 1e9

# Names of runs end in file names, addresses and HTML.
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AnyCase(Protocol):
    """What every kind of case tells of itself; `case.Case` and `collective_case.CollectiveCase` are the two kinds."""

    @property
    def kind(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def strategy(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def bucket_cap(self) -> float | None: ...
    @property
    def world_size(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def ranks_per_node(self) -> int | None: ...
    @property
    def device(self) -> str: ...
    @property
    def backend(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


class Phase(StrEnum):
    """Which part of a launch a sample belongs to; never pooled."""

    WARMUP = "warmup"
    SETTLE = "settle"
    MEASURE = "measure"
    INSTRUMENT = "instrument"
    PROFILE = "profile"
    # Of a flight recorder, which knows no steps.
    FLIGHT = "flight"


class Status(StrEnum):
    """How a launch ended."""

    OK = "ok"
    WRONG = "wrong"
    OOM = "oom"
    CRASHED = "crashed"
    HUNG = "hung"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Sample(NamedTuple):
    """One observed number. `step` is None for what belongs to the whole launch."""

    rank: int
    step: int | None
    phase: str
    metric: str
    value: float | None


class CollectiveSample(NamedTuple):
    """One call of a collective operation on one rank.

    `step` is the training step; of a microbenchmark it counts the rows of one size, form and phase; of a flight
    recorder it is which call of its group it is. `seq` counts all rows of the rank. A row may stand for several `calls`
    that a microbenchmark made back to back: `duration_s` then is what one of them took, their time divided by their
    number. `algorithm` is the one that really ran. `bytes` is the whole buffer; it and `group_size` are None only if a
    recording does not have them. `made_s`, when it was called, and `start_s`, when it began to run, are on the clock
    that all processes of a host share; None is unknown.
    `ranks` are those that take part, as in `0-3` or `0,2`. `bucket` is the index of DDP's bucket that it reduced,
    and `ready_s` when the bucket's last gradient was there.
    `n_wrong` counts the elements that this rank found wrong at this size and form; None when it came to no check.
    """

    rank: int
    step: int
    seq: int
    op: str
    algorithm: str
    group_size: int | None
    bytes: int | None
    start_s: float | None
    duration_s: float | None
    phase: str
    in_place: bool | None
    n_wrong: int | None
    ranks: str | None = None
    dtype: str | None = None
    made_s: float | None = None
    bucket: int | None = None
    ready_s: float | None = None
    calls: int = 1


class Span(NamedTuple):
    """What one rank did from when to when, on the clock that all processes of a host share.

    `name` is a part of the step, as in metrics.STEP_PARTS without its unit, or `wait`: its training was blocked on
    communication. Of a step that somebody else recorded also `communication`, when a collective ran, and `other`, what
    of the step has no name.
    """

    rank: int
    step: int
    name: str
    start_s: float
    end_s: float


class SeenCall(NamedTuple):
    """A collective's call in an instrumented step as its rank hands it over, `ranks` those that take part. Moments are
    seconds on the clock of its node."""

    step: int
    seq: int
    op: str
    algorithm: str
    ranks: list[int]
    dtype: str | None
    bytes: int
    made_s: float
    start_s: float | None
    duration_s: float | None
    bucket: int | None
    ready_s: float | None

    def later(self, by_s: float) -> SeenCall:
        """The same call on a clock that is ahead by so much."""
        return self._replace(
            made_s=self.made_s + by_s,
            start_s=None if self.start_s is None else self.start_s + by_s,
            ready_s=None if self.ready_s is None else self.ready_s + by_s,
        )


class DeviceSample(NamedTuple):
    """One NVML reading of a device, `t_s` seconds after the launch began. `rank` is whose process it is about, None for
    the whole device. A value that could not be read is None, with the reason. Devices are counted from 0 on each
    `node`."""

    device: int
    t_s: float
    metric: str
    value: float | None
    rank: int | None = None
    reason: str | None = None
    node: int = 0


class HostSample(NamedTuple):
    """One reading of the host, `t_s` seconds after the launch began; `rank` is whose process it is about, None for the
    whole host. A value that could not be read is None, with the reason. `node` is the host's number."""

    rank: int | None
    t_s: float
    metric: str
    value: float | None
    reason: str | None = None
    node: int = 0


class LinkSample(NamedTuple):
    """What lies between two ranks of a session, one way: `from_rank` sends. A device is `cpu`, or `cuda:3` of its node.

    `latency_s` is half a round trip of the smallest message (`plan.protocol.LATENCY_QUANTILE` says which of many). A
    value that could not be measured is None, with the reason.
    """

    from_rank: int
    to_rank: int
    from_node: int
    to_node: int
    from_device: str
    to_device: str
    latency_s: float | None
    bytes_per_s: float | None
    reason: str | None = None


class LinkMessage(NamedTuple):
    """One timed message between two ranks of a session, from when `from_rank` began to send until it had the answer: of
    8 bytes a round trip (over NCCL the mean of several), of more a transfer. The phase is `measure` where a LinkSample
    follows from it, else `warmup`: the first round trips, and transfers of sizes that were too quick."""

    from_rank: int
    to_rank: int
    bytes: int
    phase: Phase
    duration_s: float


class Finding(Record, frozen=True):
    """A warning about a result. `case_id` is None if it concerns the whole session."""

    code: str
    message: str
    advice: str
    case_id: str | None = None


class Failure(Record, frozen=True):
    """Why a launch failed: the first rank that failed, its signal or its traceback."""

    message: str
    rank: int | None = None
    signal: str | None = None
    traceback: str | None = None

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}: "
        return where + self.message


@dataclass(slots=True)
class Launch:
    """One fresh group of processes that ran one case once. Those that count have a `block` of 0 or more.

    `facts` holds what ranks report about how the case really ran (bucket sizes, the algorithm per operation). Of a
    launch that several cases share `arms` are what each of them measured; the launch itself is then of the first.
    """

    case: AnyCase
    status: Status
    started_utc: str
    wall_s: float
    block: int = 0
    position: int = 0
    failure: Failure | None = None
    samples: list[Sample] = field(default_factory=list)
    device_samples: list[DeviceSample] = field(default_factory=list)
    host_samples: list[HostSample] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    collectives: list[CollectiveSample] = field(default_factory=list)
    links: list[LinkSample] = field(default_factory=list)
    messages: list[LinkMessage] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    arms: list[Launch] = field(default_factory=list)

    def step_times(self, phase: Phase | None = None) -> list[float]:
        """Seconds that each step took on its slowest rank, in order; of one phase, or of all. NaN where a rank's is
        unknown."""
        return _slowest(
            (sample.step, sample.value)
            for sample in self.samples
            if sample.metric == "step_s" and sample.step is not None and phase in (None, sample.phase)
        )

    def call_durations(self, size: int) -> list[float]:
        """Seconds that each measured collective of `size` bytes took on its slowest rank, in order; NaN where a rank's
        is unknown."""
        calls = (call for call in self.collectives if call.bytes == size and call.phase == Phase.MEASURE)
        return _slowest((call.seq, call.duration_s) for call in calls)


def _slowest(ranks: Iterable[tuple[int, float | None]]) -> list[float]:
    """The largest seconds of each place, in order of places; NaN stays NaN, whatever the others are."""
    slowest: dict[int, float] = {}
    for at, seconds in ranks:
        known = math.nan if seconds is None else seconds
        slowest[at] = known if math.isnan(known) else max(slowest.get(at, known), known)
    return [slowest[at] for at in sorted(slowest)]


# The finding of a case that is launched no more because NCCL refuses its algorithm.
PIN_REFUSED = "pin_refused"

# Why a value is null where neither time nor permission would help; what a device lacks is no warning.
NOT_SUPPORTED = "not supported by this device or driver"
# Why a rate is null though its counter was read: no failure, and no warning either.
MAY_HAVE_WRAPPED = "the counter has 32 bits, and may have gone round more than once between two readings"

# The spans in which a training was blocked on communication; the others are named like a step's parts.
WAIT = "wait"
# In the steps of somebody else's recording: when collectives ran, and what of a step nobody named.
COMMUNICATION, OTHER = "communication", "other"

# What the program of a rank that is alone is made of (`probes.program`).
WORK, PART, CALL, WAIT_FOR = "work", "part", "call", "wait"

# Operations between two ranks.
MESSAGES = ("send", "recv")

# The folder beside a store for the traces that a run is asked for.
TRACES = "traces"

# Launches that count are in a block of 0 or more. Those that don't: one device's, which others are verified against,
# the one for NCCL's debug log, and what the second copy of a case measured in a shared launch.
REFERENCE_BLOCK = -1
EXPLAIN_BLOCK = -2
TWIN_BLOCK = -3
FIRST_BLOCK = 0
# What they are called.
UNCOUNTED = {REFERENCE_BLOCK: "reference", EXPLAIN_BLOCK: "NCCL debug log", TWIN_BLOCK: "twin"}

# The finding of a launch whose reference did not run: it computed something, nobody knows whether the right thing.
UNVERIFIED = "unverified"

# That of a recording in which some ranks wait in a call that others never made.
RECORDING_HANG = "recording_hang"

# That of a session whose training was a user's own loop: no command launches it again.
WATCHED = "watched"

# The code of a session that ran on the CPU although torch or a driver is made for a GPU, and no device was named.
MEASURED_ON_CPU = "measured_on_cpu"

# That of a watched case whose batches hold nothing to count samples by: its throughput is unknown.
BATCH_UNSEEN = "batch_unseen"


def utc_now() -> str:
    """The time now as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_label(text: str) -> str:
    """`text` if it may name a session, else UsageError."""
    if not isinstance(text, str) or not _LABEL.fullmatch(text):
        raise UsageError(f"label {text!r}: use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    return text
