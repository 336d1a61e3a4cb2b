"""Define the data that launches record: samples, spans, warnings, and the launch itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from parabench.records import Record

MIB = 2**20
GB = 1e9


class AnyCase(Protocol):
    """The common fields of `case.Case`, `case.RecordedCase` and `collective_case.CollectiveCase`."""

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
    """The part of a launch that a sample belongs to."""

    WARMUP = "warmup"
    SETTLE = "settle"
    MEASURE = "measure"
    INSTRUMENT = "instrument"
    PROFILE = "profile"
    FLIGHT = "flight"  # a call in a flight recorder, which has no steps


class Status(StrEnum):
    """The outcome of a launch."""

    OK = "ok"
    WRONG = "wrong"
    OOM = "oom"
    CRASHED = "crashed"
    HUNG = "hung"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Sample(NamedTuple):
    """One observed number of a rank. `step` is None if it belongs to the whole launch."""

    rank: int
    step: int | None
    phase: str
    metric: str
    value: float | None


class CollectiveSample(NamedTuple):
    """One call of a collective operation on one rank, with times on the clock of the host.

    - `step`: the training step, the index within a size, form and phase, or the number of the call in a flight recorder
    - `seq`: the index of the call on its rank
    - `duration_s`: the time of one call, also for several back-to-back `calls`
    - `bytes`: the size of the whole buffer
    - `ready_s`: when the last gradient of DDP's `bucket` was ready
    - `made_s`, `start_s`: when the operation was called, and when it started to run
    - `ranks`: the members of the group, such as `0-3` or `0,2`
    - `n_wrong`: the number of wrong elements on this rank; None without a check
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
    """A part of a step of one rank, with times on the clock of the host.

    `name` is from `metrics.STEP_PARTS`, without the unit, or `wait`: training was blocked on communication. Training
    runs that another tool recorded also have `communication` and `other`.
    """

    rank: int
    step: int
    name: str
    start_s: float
    end_s: float


class DeviceSample(NamedTuple):
    """One NVML reading of a device, `t_s` seconds after the start of the launch.

    `rank` is None for the whole device. `value` is None with a `reason` if it could not be read. Devices are counted
    from 0 on each `node`.
    """

    device: int
    t_s: float
    metric: str
    value: float | None
    rank: int | None = None
    reason: str | None = None
    node: int = 0


class HostSample(NamedTuple):
    """One reading of a host, with the fields of `DeviceSample`. `rank` is None for the whole host, number `node`."""

    rank: int | None
    t_s: float
    metric: str
    value: float | None
    reason: str | None = None
    node: int = 0


class LinkSample(NamedTuple):
    """The link between two ranks of a session in one direction. A device is `cpu`, or its number such as `cuda:3`.

    `latency_s` is half a round trip of the smallest message. Unknown values are None with a `reason`.
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
    """One timed message between two ranks, from the start of sending until the answer arrived.

    A message of 8 bytes is a round trip (with NCCL, the mean of several). The phase is `warmup` if no LinkSample uses
    the message.
    """

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
    """The error of a launch, with the first rank that failed and its signal or traceback."""

    message: str
    rank: int | None = None
    signal: str | None = None
    traceback: str | None = None

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}: "
        return where + self.message


@dataclass(slots=True)
class Launch:
    """A launch of one configuration: its outcome and all recorded data.

    `facts` are reported by ranks. If configurations were interleaved, `arms` has a Launch for each, and only these are
    stored.
    """

    case: AnyCase
    status: Status
    started_utc: str
    wall_s: float
    repetition: int = 0
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
        """Return the seconds of each step on its slowest rank, for one or all phases; NaN if a rank's is unknown."""
        steps = (each for each in self.samples if each.metric == "step_s" and phase in (None, each.phase))
        return list(slowest((each.step, each.value) for each in steps if each.step is not None).values())

    def call_durations(self, size: int) -> list[float]:
        """Return the seconds of each measured call of `size` bytes on its slowest rank; NaN if a rank's is unknown."""
        calls = (call for call in self.collectives if call.bytes == size and call.phase == Phase.MEASURE)
        return list(slowest((call.seq, call.duration_s) for call in calls).values())


def slowest(ranks: Iterable[tuple[int, float | None]]) -> dict[int, float]:
    """Return {step or call: seconds on its slowest rank} in order, from one pair per rank; NaN if one is unknown."""
    found: dict[int, float] = {}
    for step, seconds in ranks:
        known = math.nan if seconds is None else seconds
        before = found.get(step, known)
        found[step] = before if before > known or math.isnan(before) else known
    return dict(sorted(found.items()))


# The codes of findings that other modules check for.
PIN_REFUSED = "pin_refused"  # NCCL refuses the configuration's algorithm, so it is not launched again
UNVERIFIED = "unverified"  # the reference launch failed, so nothing shows whether the launch computed the right values
RECORDING_HANG = "recording_hang"  # in flight recorder dumps, ranks wait in a call that other ranks did not make
WATCHED = "watched"  # a user's training loop, which no command can launch again
MEASURED_ON_CPU = "measured_on_cpu"  # no device was named, and torch or a driver supports GPUs
BATCH_UNSEEN = "batch_unseen"  # the samples of a watched batch cannot be counted, so the throughput is unknown

# Reasons for unknown values that are not failures, and do not cause a warning.
NOT_SUPPORTED = "not supported by this device or driver"
MAY_HAVE_WRAPPED = "the counter has 32 bits, and may have gone round more than once between two readings"

# Names of spans: training blocked on communication; in traces of other tools, collectives and the unnamed rest.
WAIT, COMMUNICATION, OTHER = "wait", "communication", "other"
# The kinds of entries of an operation trace (`probes.program`).
WORK, PART, CALL, WAIT_FOR = "work", "part", "call", "wait"
# Operations between two ranks.
MESSAGES = ("send", "recv")
# The folder next to a results database for traces.
TRACES = "traces"

# Launches that count have the number FIRST_REPETITION or more. The other numbers are for the single-device reference,
# the launch for NCCL's debug log, and the second copy of a configuration in a shared launch.
FIRST_REPETITION, REFERENCE_REPETITION, EXPLAIN_REPETITION, TWIN_REPETITION = 0, -1, -2, -3
UNCOUNTED = {REFERENCE_REPETITION: "reference", EXPLAIN_REPETITION: "NCCL debug log", TWIN_REPETITION: "twin"}


def utc_now() -> str:
    """Return the current time in UTC as ISO 8601 text, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
