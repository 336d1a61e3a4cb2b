"""What comes back of a launch: what each rank marked and handed over, and what each node saw of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from parabench.launch.processes import ProcessOutcome
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
    """What every rank hands over; each workload adds what it measures. Moments are seconds on the clock of its node.

    One that is not `reported` is of a rank that left without a word. `clock` is {"offset_s", "error_s"} of its node's
    clock, where the rank was to find out. `facts` are the launch's, `rank_facts` {name: facts} this rank's alone.
    """

    rank: int
    reported: bool = True
    error: RankError | None = None
    clock: dict[str, float] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    rank_facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def later(self, by_s: float) -> Self:
        """The same on a clock that is ahead by so much."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"error": self.error and asdict(self.error)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The reverse of `to_dict`; of a rank that failed also what any workload's rank says."""
        return cls(**{**values, "error": values["error"] and RankError(**values["error"])})


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
    def silent(
        cls,
        node: int,
        host: str,
        ranks: range,
        layout: MarkLayout,
        report_type: type[RankReport],
        *,
        lost: str | None = None,
    ) -> NodeResult:
        """Return the result of ranks of which nothing is known, with how they were `lost`."""
        return cls(
            node=node,
            host=host,
            first_rank=ranks.start,
            reports=[report_type(rank=each, reported=False) for each in ranks],
            marks=[layout.nothing() for _ in ranks],
            outcome=ProcessOutcome(ok=False),
            tails=[""] * len(ranks),
            lost=lost,
        )

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + len(self.reports))

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "outcome": asdict(self.outcome),
            "reports": [each.to_dict() for each in self.reports],
            "marks": [each.tolist() for each in self.marks],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], report_type: type[RankReport]) -> NodeResult:
        """The reverse of `to_dict`; `report_type` is the workload's."""
        return cls(
            **{
                **values,
                "outcome": ProcessOutcome(**values["outcome"] | {"killed": tuple(values["outcome"]["killed"])}),
                "reports": [report_type.from_dict(each) for each in values["reports"]],
                "marks": [np.array(each, dtype=np.float64) for each in values["marks"]],
                "counts": tuple(values["counts"]) if values["counts"] else None,
                "device_samples": [DeviceSample(*row) for row in values["device_samples"]],
                "host_samples": [HostSample(*row) for row in values["host_samples"]],
            }
        )
