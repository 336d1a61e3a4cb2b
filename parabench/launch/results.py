"""What comes back of a launch: what each rank marked and handed over, and what each node saw of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from parabench.launch.processes import ProcessOutcome
from parabench.probes import CaseReport
from parabench.probes.step_clock import read_marks
from parabench.store.record import DeviceSample, HostSample

Marks = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankError:
    """Why a rank failed; `at` is on the clock of its node, in seconds."""

    at: float
    message: str
    traceback: str
    oom: bool


@dataclass(slots=True, kw_only=True)
class RankReport:
    """Everything that a rank hands over, whatever it measured. Times are seconds on the clock of its host.

    Attributes:
        reported: False if the rank left without a report.
        clock: {"offset_s", "error_s"} of the clock of the rank's node, if the rank compared it with node 0's.
        first: For each turn of a paired launch whether it came before the other variant's (`launch.token`).
        cases: What the rank saw of each case of the launch; None for a case that it has no part in.
    """

    rank: int
    reported: bool = True
    error: RankError | None = None
    clock: dict[str, float] | None = None
    first: list[bool] = field(default_factory=list)
    cases: list[CaseReport | None] = field(default_factory=list)

    def of(self, place: int) -> CaseReport:
        """Return what the rank saw of the case at `place`: nothing if it did not come to its end."""
        return (self.cases[place] if self.cases else None) or CaseReport()

    def later(self, by_s: float) -> RankReport:
        """Return the report on a clock that is ahead by `by_s`."""
        return replace(self, cases=[each and _later(each, by_s) for each in self.cases])


def _later(case: CaseReport, by_s: float) -> CaseReport:
    stalls = [(step, start_s + by_s, end_s + by_s) for step, start_s, end_s in case.stalls]
    return replace(case, calls=[call.later(by_s) for call in case.calls], stalls=stalls)


def as_json(value: Any) -> Any:
    """Return a report or a result as JSON holds it; `NodeResult.from_json` is the reverse."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLayout:
    """The table of numbers that each rank writes into memory which outlives it, NaN where it never came.

    Without `rows` there are as many as the rank found out that it needs. The first `moments` columns are readings of
    the clock, the others durations or counts. `position(n)` says in words how far a rank came that wrote n numbers.
    """

    columns: int
    moments: int
    rows: int | None
    position: Callable[[int], str]

    def make(self, folder: Path, rank: int) -> Marks:
        """The empty table of a rank that knows how many rows it needs."""
        assert self.rows is not None
        marks = np.memmap(marks_path(folder, rank), dtype=np.float64, mode="w+", shape=(self.rows, self.columns))
        marks[:] = np.nan
        return marks

    def read(self, folder: Path, rank: int) -> Marks:
        """What a rank wrote."""
        return read_marks(marks_path(folder, rank), self.rows, self.columns)

    def nothing(self) -> Marks:
        """The table of a rank of which nothing is known."""
        return np.full((self.rows or 1, self.columns), np.nan)


def marks_path(folder: Path, rank: int) -> Path:
    """Where a rank's marks lie."""
    return folder / f"marks{rank}.f64"


@dataclass(slots=True, kw_only=True)
class NodeResult:
    """What one node saw of a launch, by its own clock, on which the launch began there at `began_s`.

    `reports` and `marks` are of its ranks, `first_rank` and those that follow; `counts` is (warm-up steps, measured
    ones) where they agreed on these themselves. Of ranks that failed `tails` are the last lines they wrote, `stacked`
    those of them that could write down their stack, and `vanished` those that had left without a word before another
    node had the others ended. `answers` is where ranks that hang said they stand, as `launch.hang` has it, nothing of
    one that did not answer. Of a node that was `lost` it is known how, and nothing else.
    """

    node: int
    host: str
    first_rank: int
    reports: list[RankReport]
    marks: list[Marks]
    outcome: ProcessOutcome
    lost: str | None = None
    began_s: float = 0.0
    tails: list[str] = field(default_factory=list)
    stacked: list[int] = field(default_factory=list)
    vanished: list[int] = field(default_factory=list)
    counts: tuple[int, int] | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    device_samples: list[DeviceSample] = field(default_factory=list)
    host_samples: list[HostSample] = field(default_factory=list)
    sampler: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def silent(cls, node: int, host: str, ranks: range, layout: MarkLayout, *, lost: str | None = None) -> NodeResult:
        """Return the result of ranks of which nothing is known, with how they were `lost`."""
        return cls(
            node=node,
            host=host,
            first_rank=ranks.start,
            reports=[RankReport(rank=each, reported=False) for each in ranks],
            marks=[layout.nothing() for _ in ranks],
            outcome=ProcessOutcome(ok=False),
            tails=[""] * len(ranks),
            lost=lost,
        )

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + len(self.reports))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NodeResult:
        """Return the result that `as_json` was given. Raises msgspec.ValidationError for anything else."""
        return msgspec.convert(
            values, cls, str_keys=True, dec_hook=lambda _, numbers: np.array(numbers, dtype=np.float64)
        )


def of_ranks(nodes: Sequence[NodeResult]) -> Iterator[tuple[RankReport, Marks]]:
    """Yield what each rank handed over and marked, in the order of ranks."""
    for node in nodes:
        yield from zip(node.reports, node.marks, strict=True)
