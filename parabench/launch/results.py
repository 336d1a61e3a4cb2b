"""The results of a launch: the report of each rank, the table of timestamps of each rank, and the result of each node.

The timestamps and other numbers that a rank writes while it runs are called marks.
"""

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
    """The error of a rank. `at` is its time in seconds, on the clock of the node."""

    at: float
    message: str
    traceback: str
    oom: bool


@dataclass(slots=True, kw_only=True)
class RankReport:
    """The report of a rank. Times are in seconds, on the clock of its node."""

    rank: int
    reported: bool = True  # False if the rank ended without a report
    error: RankError | None = None
    # {"offset_s", "error_s"} of the node's clock, if this rank compared it with the clock of node 0.
    clock: dict[str, float] | None = None
    # For each turn of a launch that `ab` interleaves: did it come before the turn of the other variant?
    first: list[bool] = field(default_factory=list)
    # The observations of each case; None for a case that does not run on this rank.
    cases: list[CaseReport | None] = field(default_factory=list)

    def of(self, place: int) -> CaseReport:
        """Return the observations of the case with the index `place`. They are empty if the rank has none."""
        return (self.cases[place] if self.cases else None) or CaseReport()

    def later(self, by_s: float) -> RankReport:
        """Return a copy of the report, with `by_s` seconds added to each time."""
        cases: list[CaseReport | None] = []
        for case in self.cases:
            if case is not None:
                stalls = [(step, start_s + by_s, end_s + by_s) for step, start_s, end_s in case.stalls]
                calls = []
                for call in case.calls:
                    times = {name: getattr(call, name) for name in ("made_s", "start_s", "ready_s")}
                    shifted: dict[str, Any] = {name: None if at is None else at + by_s for name, at in times.items()}
                    calls.append(call._replace(**shifted))
                case = replace(case, calls=calls, stalls=stalls)
            cases.append(case)
        return replace(self, cases=cases)


def as_json(value: Any) -> Any:
    """Convert a report or a result to plain values for JSON. `NodeResult.from_json` is the reverse."""
    # The hook gets arrays and numbers of NumPy.
    return msgspec.to_builtins(value, str_keys=True, enc_hook=lambda numbers: numbers.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLayout:
    """The layout of the table of numbers (marks) that each rank writes to a file, which survives a crash of the rank.

    Numbers that the rank has not written are NaN.
    """

    columns: int
    moments: int  # the first columns, which are timestamps
    rows: int | None  # None if the rank decides it
    position: Callable[[int], str]  # describes, for errors, the position of a rank that has written n numbers

    def make(self, folder: Path, rank: int) -> Marks:
        """Create the file of a rank's table, filled with NaN."""
        assert self.rows is not None
        marks = np.memmap(marks_path(folder, rank), dtype=np.float64, mode="w+", shape=(self.rows, self.columns))
        marks[:] = np.nan
        return marks

    def read(self, folder: Path, rank: int) -> Marks:
        """Read the table of a rank. It is NaN if the rank has not created its file."""
        return read_marks(marks_path(folder, rank), self.rows, self.columns)

    def nothing(self) -> Marks:
        """Return a table of NaN, for a rank that has written no file."""
        return np.full((self.rows or 1, self.columns), np.nan)


def marks_path(folder: Path, rank: int) -> Path:
    """Return the path of a rank's table of marks."""
    return folder / f"marks{rank}.f64"


@dataclass(slots=True, kw_only=True)
class NodeResult:
    """The result of one node of a launch. All times are on the clock of the node."""

    node: int
    host: str
    first_rank: int
    # One for each rank of the node, from `first_rank` on.
    reports: list[RankReport]
    marks: list[Marks]
    outcome: ProcessOutcome
    # The reason for the loss of the node. Then nothing else is known.
    lost: str | None = None
    began_s: float = 0.0
    # The (warm-up steps, measured steps) that the ranks agreed on.
    counts: tuple[int, int] | None = None
    # If the launch failed: the last lines of each rank, the ranks that could write their stacks, the position of each
    # rank (`launch.hang`), and the ranks that had left without a report before another node ended the others.
    tails: list[str] = field(default_factory=list)
    stacked: list[int] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    vanished: list[int] = field(default_factory=list)
    device_samples: list[DeviceSample] = field(default_factory=list)
    host_samples: list[HostSample] = field(default_factory=list)
    sampler: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def silent(cls, node: int, host: str, ranks: range, layout: MarkLayout, *, lost: str | None = None) -> NodeResult:
        """Return the result of a node whose ranks left no report. `lost` is the reason if the node was lost."""
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
        """Return the result that `as_json` converted. Raises msgspec.ValidationError for other values."""
        return msgspec.convert(
            values, cls, str_keys=True, dec_hook=lambda _, numbers: np.array(numbers, dtype=np.float64)
        )


def of_ranks(nodes: Sequence[NodeResult]) -> Iterator[tuple[RankReport, Marks]]:
    """Yield (report, marks) of each rank of all nodes, in the order of ranks."""
    for node in nodes:
        yield from zip(node.reports, node.marks, strict=True)
