"""What a session on an emulated machine has measured, case by case, and whether the cores were the limit."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.foresight.machines import IDLE, STORE
from parabench.analysis.launch_number import launch_number
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import FIRST_BLOCK, Status
from parabench.store.results import load

# With less of the CPU's time idle ranks wait for cores, and not for timers and links only.
LEAST_IDLE = 0.25


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
    cases: dict[str, Measured] = {}
    for row in results.launch[results.launch["block"] >= FIRST_BLOCK].to_dict("records"):
        fields = json.loads(row["case_json"])
        case = CollectiveCase.from_dict(fields) if "op" in fields else Case.from_dict(fields)
        found = cases.setdefault(case.id, Measured(case))
        found.launches += 1
        if row["status"] == Status.OK:
            found.idle.append(idle_share(watched, row))
            seconds = launch_number(steps[row["id"]], case.device)
            found.steps_s += [] if seconds is None else [seconds]
    return list(cases.values())


def idle_share(watched: dict[str, npt.NDArray[np.float64]], launch: dict[str, Any]) -> float:
    """That of the measured steps of a launch, or of the whole of it where it has no steps."""
    window = json.loads(launch["facts"]).get("phases", {}).get("measure")
    clock = watched["clock_s"]
    if window is None:
        began = datetime.fromisoformat(launch["started_utc"]).timestamp()
        clock, window = watched["utc_s"], (began, began + launch["wall_s"])
    idle, every = (np.diff(np.interp(window, clock, watched[name]))[0] for name in ("idle_s", "all_s"))
    return float(idle / every) if every > 0 else float("nan")
