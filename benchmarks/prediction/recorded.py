"""The recorded truth: what sessions on emulated machines measured, in a file of the repository.

So predictions are compared with it in a second, on any machine. `benchmarks.prediction.truth` measures it again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prediction.machines import DONE, STORE, Machine
from benchmarks.prediction.measured import measured
from benchmarks.prediction.sessions import base, held
from parabench.analysis.prediction.base import Base, Computed, computed_of, sessions_of, training_step_times
from parabench.analysis.prediction.links import Row, measured_rows
from parabench.analysis.prediction.program import Event, Program, program_of
from parabench.plan.case import DEFAULTS, Case
from parabench.store.record import CALL
from parabench.store.results import load

FILE = Path(__file__).with_name("recorded.json")


@dataclass(frozen=True, slots=True)
class Truth:
    """A held-out case: the machine, the seconds of a step, and the share of CPU time that was idle."""

    machine: Machine
    case: Case
    step_s: float
    idle: float


def record(folder: Path) -> None:
    """Write FILE from the databases of `folder`, as `benchmarks.prediction.truth` leaves them."""
    sessions: dict[str, Any] = {}
    for each in base():
        results = load(folder / "base" / each.name / STORE)
        sessions[each.name] = {
            "computed": [
                [_fields(one.case), *_events(one.program), _rounded(one.jitter.tolist())]
                for session in sessions_of(results, "compute")
                for one in computed_of(results, session)
            ],
            "rows": [_rounded(row) for row in measured_rows(results, sessions_of(results, "collectives"))],
            "measured": [[_fields(case), _rounded(step_s)] for case, step_s in training_step_times(results).items()],
        }
    truths = []
    for each in held():
        machine, own = each.machine, folder / "held" / each.name
        for one in measured(own) if (own / DONE).exists() else ():
            if one.step_s is not None:
                numbers = _rounded([one.step_s, one.least_idle])
                truths.append([machine.nodes, machine.per_node, machine.rate, _fields(one.case), *numbers])
    text = json.dumps({"sessions": sessions, "held": truths}, separators=(",", ":"))
    FILE.write_text(text.replace("],[{", "],\n[{") + "\n")


def base_of_sessions(*names: str) -> Base:
    """Return the base that recorded sessions hold together."""
    sessions = json.loads(FILE.read_text())["sessions"]
    own = [sessions[name] for name in names]
    computed = []
    for fields, events, gradients, jitter in (each for session in own for each in session["computed"]):
        case = Case(**fields)
        computed.append(Computed(case, program_of(events, case.world_size, gradients), np.array(jitter)))
    rows = tuple(Row(*row) for session in own for row in session["rows"])
    measured = {Case(**fields): step_s for session in own for fields, step_s in session["measured"]}
    return Base(tuple(computed), rows, measured)


def truths() -> list[Truth]:
    """Return the held-out cases."""
    held = json.loads(FILE.read_text())["held"]
    return [Truth(Machine(*machine), Case(**fields), step_s, idle) for *machine, fields, step_s, idle in held]


def _fields(case: Case) -> dict[str, Any]:
    return {name: value for name, value in case.to_dict().items() if value != DEFAULTS[name]}


def _case(fields: dict[str, Any]) -> Case:
    return Case(**fields)


def _events(program: Program) -> tuple[list[Any], list[Any]]:
    """Return the events and gradients as `program_of` reads them."""

    def written(event: Event) -> list[Any]:
        kind, value = event
        if kind != CALL:
            return [kind, _rounded(value)]
        op, size, (ranks, stride, first) = value
        return [CALL, op, size, [first + at * stride for at in range(ranks)], 0.0]

    gradients = [["", size, _rounded(ready_s)] for size, ready_s in program.gradients]
    return [written(event) for event in program.events], gradients


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
