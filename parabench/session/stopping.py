"""Add repetitions of the cases that may still be the fastest: racing, and `--until-decided`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parabench.errors import UsageError
from parabench.plan.plan import C, P, Plan
from parabench.store.results import load
from parabench.store.store import Store

if TYPE_CHECKING:
    import pandas as pd


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
                "--budget is the time for a race, and with --launches, or where no cases can share a launch, there is "
                "none; give --until-decided with it"
            )
        if budget is not None and not (budget > 0 and math.isfinite(budget)):
            raise UsageError(f"--budget is {budget:g}; give minutes, more than 0")
        if race_s is None and not until_decided:
            return None
        words = ["--until-decided"] * until_decided + ([] if budget is None else ["--budget", f"{budget:g}"])
        budget_s = 60 * budget if budget is not None else None if until_decided else race_s
        return cls(budget_s=budget_s, words=tuple(words))

    def next_block(
        self, store: Store, session_id: int, plan: Plan[C, P], log: Callable[[str], None], go_on: str
    ) -> Plan[C, P] | None:
        """Return `plan` with one more repetition, and store it; `None` if there is none to come, and log why.

        `go_on` is the command that continues. With a budget, noise does not end the session early.
        """
        from parabench.analysis.session import session_data

        launches = session_data(load(store.path), session_id).numbers
        cases = self._racing(launches, plan, log) if plan.races else self._undecided(launches, plan.blocks, log, go_on)
        if not cases:
            return None
        order = tuple(case.id for case in plan.cases if case.id in cases)
        plan = plan.replace(extra=(*plan.extra, order))
        store.replan(session_id, plan.to_dict())
        return plan

    def _racing(self, launches: pd.DataFrame, plan: Plan[C, P], log: Callable[[str], None]) -> Collection[str]:
        """Return the cases of the next repetition of racing."""
        from parabench.analysis import format
        from parabench.analysis.ranking.race import standings

        looks = [look for look in standings(launches) if not look.decided]
        racing = [case for look in looks for case in look.racing]
        if not racing:
            return ()
        widths = [look.half_width for look in looks]
        known = "" if None in widths else f", {format.within(max(filter(None, widths)))}"
        standing = f"{len(racing)} of {len(plan.cases)} cases may be the fastest{known}"
        last = launches[launches["repetition"] == launches["repetition"].max()]
        if self.budget_s is not None and self.clock() - self.began + float(last["wall_s"].sum()) > self.budget_s:
            log(f"{standing}: the race ends after {format.duration(self.budget_s)}")
            return ()
        log(standing)
        return racing

    def _undecided(
        self, launches: pd.DataFrame, blocks: int, log: Callable[[str], None], go_on: str
    ) -> Collection[str]:
        """Return the cases of the next repetition of `--until-decided`, after so many blocks."""
        from parabench.analysis import format
        from parabench.analysis.ranking.stopping import block_seconds, candidates
        from parabench.analysis.stats.contrasts import MOST_BLOCKS, SHARP_ENOUGH

        left, tell = candidates(launches, patient=self.budget_s is not None), f"{100 * SHARP_ENOUGH:g}%"
        if not left.cases:
            for heading in left.too_noisy:
                of = f"{heading}: " if heading else ""
                needed = f"more than {MOST_BLOCKS} blocks would be needed to resolve {tell}"
                log(f"{of}{needed}, so no more are run: too noisy")
            if anyway := candidates(launches, patient=True).cases:
                minutes = math.ceil((MOST_BLOCKS - blocks) * block_seconds(launches, anyway) / 60)
                log(f"go on for up to {MOST_BLOCKS} blocks anyway with: {go_on} --budget {minutes}")
            if not left.too_noisy:
                log(f"nothing is left to decide after {format.count(blocks, 'block')}")
            return ()
        if self.budget_s is not None:
            wanted, rest = block_seconds(launches, left.cases), self.budget_s - (self.clock() - self.began)
            if wanted > rest:
                has, takes = (format.digits(seconds, 2) for seconds in (max(0.0, rest), wanted))
                log(
                    f"the budget of {self.budget_s / 60:g} min has {has} s left, and a block of {len(left.cases)} "
                    f"candidates takes {takes} s; go on with: {go_on}"
                )
                return ()
        needed = "too few blocks to know how many would"
        if left.more_blocks is not None:
            needed = f"about {format.count(left.more_blocks, 'more block')} would"
            if blocks + left.more_blocks > MOST_BLOCKS:
                needed = f"perhaps more than {MOST_BLOCKS} blocks would be needed to"
        log(f"block {blocks + 1}: {len(left.cases)} candidates left, {needed} resolve {tell}")
        return left.cases
