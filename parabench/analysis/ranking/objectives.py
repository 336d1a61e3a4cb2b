"""Define the objectives of `best`: the number to rank by, the workloads that it can compare, and its texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from parabench.analysis import format as words
from parabench.analysis.launch_number import MEAN
from parabench.analysis.numbers import WORK
from parabench.analysis.session import SessionData
from parabench.errors import UsageError
from parabench.store.results import records

# Per token, workloads with other batch sizes can be compared: weak scaling, and other world sizes.
PER_TOKEN = tuple(name for name in WORK if name != "global_batch")


@dataclass(frozen=True)
class Objective:
    """A number to rank by, and its texts."""

    name: str
    column: str  # the cost of a launch in SI units; less is better
    first: str  # the name of the best
    more: str  # how others are worse
    ahead: str  # how the best is better than all others
    head: str  # the title of a column
    say: Callable[[float, str], str]  # formats a value; the second argument is the unit, tokens or samples
    margin: Callable[[float, float], str]  # formats the half-width of a value, the second argument
    work: tuple[str, ...] = WORK  # the fields that must agree for two cases to be compared
    inverse: bool = False  # users read the inverse, as for throughput

    def worse(self, fraction: float | None) -> str:
        """Return 'is 9% slower', 'needs 9% more memory'."""
        return self.more.format(words.percent(fraction))


# The first six fields of each objective.
_STEP = ("step_time_s", "step_s", "Fastest", "is {} slower", "faster than", "step")
_RATE = ("tokens_per_s", "token_s", "Highest throughput", "takes {} longer", "faster than", "throughput")
_MEMORY = ("memory", "peak_memory_bytes", "Lowest peak memory", "needs {} more memory", "below", "peak memory")
_JOULES = ("joules", "token_j", "Lowest energy", "needs {} more energy", "below", "energy")
OBJECTIVES = {
    each.name: each
    for each in (
        Objective(*_STEP, lambda seconds, _: f"{words.milliseconds(seconds)} per step", words.margin),
        Objective(*_RATE, words.throughput, words.margin_rate, PER_TOKEN, inverse=True),
        Objective(*_MEMORY, lambda count, _: words.mebibytes(count), words.margin_mib),
        Objective(
            *_JOULES,
            lambda joules, unit: f"{words.joules(joules)} per {unit.removesuffix('s')}",
            lambda margin, _: words.joules(margin),
            PER_TOKEN,
        ),
    )
}
STEP = OBJECTIVES["step_time_s"]
# Objectives that only use launches with comparable step times, and that links can explain.
TIMED = ("step_time_s", "tokens_per_s")


def require(seen: SessionData, objective: Objective) -> None:
    """Raise UsageError, with the reason, if launches succeeded and none has a number for the objective."""
    good = seen.counted
    if not len(good) or (good[objective.column] > 0).any():
        return
    why = {
        "peak_memory_bytes": "its launches recorded no peak memory",
        "token_s": "the samples in its batches could not be counted",
        "token_j": next(filter(None, good["joules_reason"]), "no launch succeeded"),
    }[objective.column]
    raise UsageError(
        f"{seen.session.name} cannot be ranked by {objective.name}: {why}; "
        "give another --objective, such as step_time_s, or another session"
    )


def basis(objective: Objective, launches: pd.DataFrame) -> str:
    """Return the per-launch statistic in words: '10th percentile of its steps, as on shared CPUs'."""
    if objective.column == "token_j":
        source = next(iter(launches["joules_source"].dropna()), words.UNKNOWN)
        return f"energy of its devices over the measured steps ({source})"
    first = records(launches[:1], ("device", "statistic"))[0]
    cpu = first["device"] == "cpu"
    if objective.column == "peak_memory_bytes":
        return f"peak {'resident' if cpu else 'allocated'} memory of the largest rank"
    if first["statistic"] == MEAN:
        return "mean step of the loop after its warm-up, wall time over steps"
    return f"{first['statistic']} of its steps, as {'on shared CPUs' if cpu else 'on dedicated GPUs'}"
