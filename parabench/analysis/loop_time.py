"""Read the account of a watched loop's time, which its launch holds as a fact (`watching.loop.loop_time`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench import json_text

# The per-launch statistic of a watched loop, whose steps differ on purpose: every few steps log, save or validate.
MEAN = "mean"
# The facts of such a launch contain this, as JSON.
_LOOP = '"loop": {'


@dataclass(frozen=True, slots=True)
class LoopTime:
    """The wall time of a watched loop on one rank, after the first `first` steps: `seconds` of each part of all
    `steps`. Some steps were `instrumented`.

    `expensive` has groups of steps that take `extra_s` longer in one `part`: every `every`-th step, or at irregular
    intervals if it is None. The extra time of all `steps` of a group is `share` of the loop.
    """

    rank: int
    first: int
    steps: int
    instrumented: int
    seconds: Mapping[str, float]
    expensive: Sequence[Mapping[str, Any]]

    @property
    def step_s(self) -> float:
        """The mean step: wall time over steps."""
        return sum(self.seconds.values()) / self.steps

    def part_s(self, name: str) -> float:
        """The mean of one part over the same steps; NaN if the loop has no such part."""
        return self.seconds[name] / self.steps if name in self.seconds else float("nan")


def loop_times(facts: pd.Series[str]) -> list[LoopTime | None]:
    """Return the account of each launch, from its facts as text; `None` for a launch without a watched loop."""
    texts = (text if isinstance(text, str) and _LOOP in text else None for text in facts)
    return [None if text is None else LoopTime(**json_text.parsed(text)["loop"]) for text in texts]
