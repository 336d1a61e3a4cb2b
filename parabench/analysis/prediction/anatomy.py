"""What a step of one device is made of, as a session measured it: its parts, and when each gradient is ready."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parabench.analysis.prediction.buckets import Gradient
from parabench.analysis.session import SessionData
from parabench.analysis.tables import WORK
from parabench.store.columns import records
from parabench.store.record import Status
from parabench.strategies import entry_of

PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s")


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A step of a training on one device: of which `work` (`tables.WORK`, the batch with it), how many seconds each of
    its `parts` (PARTS) takes, and its gradients by readiness, over so many `launches`."""

    case_id: str
    label: str
    work: dict[str, Any]
    parts: dict[str, float]
    gradients: tuple[Gradient, ...]
    launches: int

    @property
    def samples(self) -> int:
        """How many samples the step computes."""
        return int(self.work["global_batch"])

    @property
    def step_s(self) -> float:
        """How long the step takes."""
        return sum(self.parts.values())


def anatomies(seen: SessionData) -> Iterator[Anatomy]:
    """That of each case of a session that trained on one device and told when gradients were ready.

    Parts and moments are medians, over launches of what is a median of each, and the case's step time is what the
    report says: so all are scaled by the one number with which the parts add up to it.
    """
    for row in records(seen.case_columns, ("case_id", "label", "strategy", "step_time_s", *WORK, *PARTS)):
        case = row["case_id"]
        if not entry_of(row["strategy"]).one_rank_only or case not in seen.by_case:
            continue
        launches = seen.launched[case]
        told = [seen.facts[at].get("gradients") for at in launches.loc[launches["status"] == Status.OK, "launch_id"]]
        measured = [{name: (size, ready) for name, size, ready in each} for each in told if each]
        parts = {name: float(row[name]) for name in PARTS}
        if not measured or not all(seconds > 0 for seconds in parts.values()):
            continue
        scale = float(row["step_time_s"]) / sum(parts.values())
        ready = {name: statistics.median(each[name][1] for each in measured) * scale for name in measured[0]}
        yield Anatomy(
            case_id=case,
            label=row["label"],
            work={name: row[name] for name in WORK},
            parts={name: seconds * scale for name, seconds in parts.items()},
            gradients=tuple(
                Gradient(measured[0][name][0], at) for name, at in sorted(ready.items(), key=lambda one: one[1])
            ),
            launches=len(measured),
        )
