"""The results of a session on an emulated machine, case by case, and whether the cores were the limit."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.prediction.machines import IDLE, STORE
from parabench.analysis.launch_number import launch_number
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import FIRST_REPETITION, Phase, Status
from parabench.store.results import Results, load

# With a smaller idle share, ranks wait for cores and not for timers and links only: their timers end at the same time.
LEAST_IDLE = 0.5

Window = tuple[float, float]


@dataclass(slots=True)
class Measured:
    """A case with the step seconds and the idle share of each successful launch, and the number of all launches.

    Collectives have no steps.
    """

    case: Case | CollectiveCase
    steps_s: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    launches: int = 0

    @property
    def step_s(self) -> float | None:
        """Return the mean over launches, None for collectives."""
        return float(np.mean(self.steps_s)) if self.steps_s else None

    @property
    def least_idle(self) -> float:
        """Return the smallest idle share of a launch; 0 if none succeeded."""
        return min(self.idle, default=0.0)

    @property
    def counts(self) -> bool:
        """Return whether every launch succeeded with enough idle cores."""
        return len(self.idle) == self.launches and self.least_idle >= LEAST_IDLE

    def __str__(self) -> str:
        step = f"{'-':>10}" if self.step_s is None else f"{1e3 * self.step_s:7.1f} ms"
        why = "" if self.counts else ", does not count"
        return f"{step}, idle {self.least_idle:4.0%}, {len(self.idle)}/{self.launches} launches ok{why}"


def measured(folder: Path) -> list[Measured]:
    """Return the cases of the sessions in a folder, in the order of their first launches."""
    results = load(folder / STORE)
    table = json.loads((folder / IDLE).read_text())
    watched = dict(zip(table["columns"], np.array(table["rows"]).T, strict=True))
    steps: dict[int, list[float]] = defaultdict(list)
    for launch, seconds in zip(results.steps["launch_id"], results.steps["step_s"], strict=True):
        steps[launch].append(seconds)
    calls = _calls(results)
    cases: dict[str, Measured] = {}
    launches = results.launch[results.launch["repetition"] >= FIRST_REPETITION]
    for launch, text, status, facts in launches[["id", "case_json", "status", "facts"]].itertuples(index=False):
        fields = json.loads(text)
        case = CollectiveCase.from_dict(fields) if "op" in fields else Case.from_dict(fields)
        found = cases.setdefault(case.id, Measured(case))
        found.launches += 1
        if status != Status.OK:
            continue
        phases = json.loads(facts).get("phases", {})
        found.idle.append(idle_share(watched, [phases[Phase.MEASURE]] if phases else calls[launch]))
        seconds = launch_number(steps[launch], case.device)
        found.steps_s += [] if seconds is None else [seconds]
    return list(cases.values())


def _calls(results: Results) -> dict[int, list[Window]]:
    """Return for each launch the times in which rank 0 measured single collectives."""
    windows: dict[int, list[Window]] = defaultdict(list)
    rows = results.collective
    rows = rows[(rows["rank"] == 0) & (rows["phase"] == Phase.MEASURE) & rows["duration_s"].notna()]
    for launch, start, seconds, calls in rows[["launch_id", "start_s", "duration_s", "calls"]].itertuples(index=False):
        windows[launch].append((start, start + seconds * calls))
    return windows


def idle_share(watched: Mapping[str, npt.NDArray[np.float64]], windows: Iterable[Window]) -> float:
    """Return the idle share of all windows together; NaN if they have no length."""
    ends = np.array(list(windows)).reshape(-1, 2)
    clock = watched["clock_s"]
    idle_s, all_s = (float(np.diff(np.interp(ends, clock, watched[name])).sum()) for name in ("idle_s", "all_s"))
    return idle_s / all_s if all_s > 0 else math.nan
