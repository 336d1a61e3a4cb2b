"""Add repetitions of the cases that may still be the fastest: racing, and `--until-decided`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from parabench.errors import UsageError
from parabench.plan.plan import C, P, Plan
from parabench.store.results import load
from parabench.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveStopping:
    """Decide after each repetition whether there is another one.

    `budget_s` counts from `began`; `None` is unlimited. `words` are the options that asked for it.
    """

    budget_s: float | None = None
    words: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def asked(cls, until_decided: bool, budget: float | None, race_s: float | None) -> AdaptiveStopping | None:
        """Return the rule for these options, if any. `race_s` is the default of racing. Raises UsageError."""
        if budget is not None and not until_decided and race_s is None:
            raise UsageError(
                "--budget is the time for racing; --launches disables racing, as do configurations that cannot share a "
                "launch; give --until-decided with it"
            )
        if budget is not None and not (budget > 0 and math.isfinite(budget)):
            raise UsageError(f"--budget is {budget:g}; give minutes, more than 0")
        if race_s is None and not until_decided:
            return None
        words = ["--until-decided"] * until_decided + ([] if budget is None else ["--budget", f"{budget:g}"])
        budget_s = 60 * budget if budget is not None else None if until_decided else race_s
        return cls(budget_s=budget_s, words=tuple(words))

    def next_repetition(
        self, store: Store, session_id: int, plan: Plan[C, P], log: Callable[[str], None], go_on: str
    ) -> Plan[C, P] | None:
        """Return `plan` with one more repetition, and store it. Return `None`, and log the reason, if none is added.

        `go_on` is the command that continues. With a budget, noise does not end the session early.
        """
        from parabench.analysis import format
        from parabench.analysis.ranking.race import next_seconds, undecided
        from parabench.analysis.session import session_data
        from parabench.analysis.stats.contrasts import MOST_REPETITIONS, SHARP_ENOUGH

        launches = session_data(load(store.path), session_id).numbers
        left = undecided(launches, plan.races, patient=self.budget_s is not None)
        cases, takes = left.cases, next_seconds(launches, left.cases)
        if left.too_noisy:
            hardly = f"{MOST_REPETITIONS} repetitions would hardly resolve {100 * SHARP_ENOUGH:g}%"
            minutes = (MOST_REPETITIONS - plan.repetitions) * next_seconds(launches, launches["case"].unique()) / 60
            log(f"too noisy: {hardly}; go on anyway with: {go_on} --budget {max(1, math.ceil(minutes))}")
        if not cases:
            return None
        within = "" if left.half_width is None else f", {format.within(left.half_width)}"
        standing = f"{len(cases)} of {len(plan.cases)} configurations may be the fastest{within}"
        if self.budget_s is not None and self.clock() - self.began + takes > self.budget_s:
            log(f"{standing}: racing ends after {format.duration(self.budget_s)}")
            return None
        log(standing)
        plan = plan.replace(extra=(*plan.extra, tuple(case.id for case in plan.cases if case.id in cases)))
        store.replan(session_id, plan.to_dict())
        return plan
