"""What a session on an emulated machine has measured, case by case, and whether the cores were the limit."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.foresight.machines import IDLE, STORE
from parabench.analysis.launch_number import launch_number
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import FIRST_BLOCK, Phase, Status
from parabench.store.results import Results, load

# With less of the CPU's time idle ranks wait for cores, and not for timers and links only: their timers end at the same
# moments, so that they need cores at the same moments.
LEAST_IDLE = 0.5

Window = tuple[float, float]


@dataclass(slots=True)
class Measured:
    """A case: of each of its launches that ended well the step's seconds (none of collectives), and the share of the
    whole machine's CPU time that was idle while it measured; and how many launches it had."""

    case: Case | CollectiveCase
    steps_s: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    launches: int = 0

    @property
    def step_s(self) -> float | None:
        """The mean over launches, None for collectives."""
        return float(np.mean(self.steps_s)) if self.steps_s else None

    @property
    def least_idle(self) -> float:
        """Of the launch that had the least; 0 where none ended well."""
        return min(self.idle, default=0.0)

    @property
    def counts(self) -> bool:
        """Whether every launch ended well, and none lacked cores."""
        return len(self.idle) == self.launches and self.least_idle >= LEAST_IDLE

    def __str__(self) -> str:
        step = f"{'-':>10}" if self.step_s is None else f"{1e3 * self.step_s:7.1f} ms"
        why = "" if self.counts else ", does not count"
        return f"{step}, idle {self.least_idle:4.0%}, {len(self.idle)}/{self.launches} launches ok{why}"


def measured(folder: Path) -> list[Measured]:
    """The cases of the sessions in a folder, in the order in which they were first launched."""
    results = load(folder / STORE)
    told = json.loads((folder / IDLE).read_text())
    watched = dict(zip(told["columns"], np.array(told["rows"]).T, strict=True))
    steps: dict[int, list[float]] = defaultdict(list)
    for launch, seconds in zip(results.steps["launch_id"], results.steps["step_s"], strict=True):
        steps[launch].append(seconds)
    calls = _calls(results)
    cases: dict[str, Measured] = {}
    launches = results.launch[results.launch["block"] >= FIRST_BLOCK]
    for launch, text, status, told in launches[["id", "case_json", "status", "facts"]].itertuples(index=False):
        fields = json.loads(text)
        case = CollectiveCase.from_dict(fields) if "op" in fields else Case.from_dict(fields)
        found = cases.setdefault(case.id, Measured(case))
        found.launches += 1
        if status != Status.OK:
            continue
        phases = json.loads(told).get("phases", {})
        found.idle.append(idle_share(watched, [phases[Phase.MEASURE]] if phases else calls[launch]))
        seconds = launch_number(steps[launch], case.device)
        found.steps_s += [] if seconds is None else [seconds]
    return list(cases.values())


def _calls(results: Results) -> dict[int, list[Window]]:
    """When rank 0 of each launch timed single collectives."""
    windows: dict[int, list[Window]] = defaultdict(list)
    rows = results.collective
    rows = rows[(rows["rank"] == 0) & (rows["phase"] == Phase.MEASURE) & rows["duration_s"].notna()]
    for launch, start, seconds, calls in rows[["launch_id", "start_s", "duration_s", "calls"]].itertuples(index=False):
        windows[launch].append((start, start + seconds * calls))
    return windows


def idle_share(watched: Mapping[str, npt.NDArray[np.float64]], windows: Iterable[Window]) -> float:
    """That of all windows together; not a number where they have no length."""
    begin_end = np.array(list(windows)).reshape(-1, 2)
    moments = watched["clock_s"]
    idle_s, all_s = (float(np.diff(np.interp(begin_end, moments, watched[name])).sum()) for name in ("idle_s", "all_s"))
    return idle_s / all_s if all_s > 0 else math.nan
