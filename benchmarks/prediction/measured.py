"""The training runs of a session on an emulated machine, and whether the cores were the limit."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.prediction.machines import IDLE, STORE
from parabench.analysis.launch_number import launch_number
from parabench.plan.case import Case
from parabench.store.record import FIRST_REPETITION, Phase, Status
from parabench.store.results import load

# With a smaller idle share, ranks wait for cores and not for timers and links only: their timers end at the same time.
LEAST_IDLE = 0.5


@dataclass(slots=True)
class Measured:
    """A training run with the step seconds and the idle share of each successful launch, and the number of launches."""

    case: Case
    steps_s: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    launches: int = 0

    @property
    def step_s(self) -> float | None:
        """The mean over launches, None if none succeeded."""
        return float(np.mean(self.steps_s)) if self.steps_s else None

    @property
    def least_idle(self) -> float:
        """The smallest idle share of a launch; 0 if none succeeded."""
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
    """Return the training runs of the sessions in a folder, in the order of their first launches."""
    results = load(folder / STORE)
    clock, idle_s, all_s = np.array(json.loads((folder / IDLE).read_text())).T
    steps = {int(launch): list(rows["step_s"]) for launch, rows in results.steps.groupby("launch_id")}
    cases: dict[str, Measured] = {}
    launches = results.launch[results.launch["repetition"] >= FIRST_REPETITION]
    for launch, text, status, facts in launches[["id", "case_json", "status", "facts"]].itertuples(index=False):
        fields = json.loads(text)
        if "op" in fields:
            continue  # a collective
        case = Case.from_dict(fields)
        found = cases.setdefault(case.id, Measured(case))
        found.launches += 1
        if status == Status.OK:
            window = json.loads(facts)["phases"][Phase.MEASURE]
            idle, every = (float(np.diff(np.interp(window, clock, each))[0]) for each in (idle_s, all_s))
            found.idle.append(idle / every if every > 0 else math.nan)
            seconds = launch_number(steps[launch], case.device)
            found.steps_s += [] if seconds is None else [seconds]
    return list(cases.values())
