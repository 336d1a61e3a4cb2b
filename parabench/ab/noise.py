"""`parabench noise`: a pilot of two equal sides in turns, and how small a slowdown `ab` shows here in which time."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from rich.console import Console

from parabench.ab.driver import AbRequest, Turns, measure
from parabench.ab.server import IN_TURNS, alone_of
from parabench.analysis.compare.pilot import pilot_of
from parabench.analysis.compare.rule import ALPHA, TOLERANCE
from parabench.analysis.compare.sensitivity import AgainstBaseline, Sensitivity, sensitivity
from parabench.analysis.compare.sides import sides_of
from parabench.analysis.text.noise import lines
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.plan.suite import load_suite
from parabench.session.progress import logger
from parabench.session.request import TrainingRequest, plan_training
from parabench.store.results import load
from parabench.store.store import STORE_NAME

# A pilot ends with as many: its standard deviation is then known within a sixth.
MOST_PAIRS = 60
# How many turns a side has in a launch of a pilot, of all cases together, and of a case at least: so few that twenty
# cases on two cores make ten pairs in minutes. On an accelerator turns are shorter, and launches take longer to begin.
# An even number of rounds gives both sides the first turn equally often.
TURNS, FEWEST_ROUNDS = {"cpu": 24, accelerator.TYPE: 80}, 4
LABEL = "noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRequest:
    """What the user asked for, unchecked: what each side runs, and for how many minutes; and what a stored baseline
    allows, where one is named. `files` says as it is typed where the answer is written."""

    run: TrainingRequest
    minutes: float
    baseline: AgainstBaseline | None = None
    files: Sequence[str] = ()

    def go_on(self) -> str:
        """The command that continues it after a stop."""
        words = ["parabench", "noise", "--resume", "--minutes", f"{self.minutes:g}", *self.files]
        return shlex.join([*words, "--out", str(self.run.out)])


def run_noise(
    request: NoiseRequest, console: Console, keep: Callable[[Sensitivity], None] = lambda answer: None
) -> int:
    """Measure the pilot and return the exit code: that of the answer, or 130 when stopped. `keep` gets
    the answer after it was said.

    Raises UsageError before anything is launched, and when a side ends before its time.
    """
    clock, last, log = monotonic(), [monotonic()], logger(console)

    def enough(sessions: Sequence[int]) -> bool:
        """Whether the next pair would end after the time that there is."""
        now = monotonic()
        pair_s, last[0] = now - last[0], now
        return now + pair_s - clock > 60 * request.minutes

    def told(turns: Turns) -> int:
        path = request.run.out / STORE_NAME
        answer = sensitivity(pilot_of(*sides_of(load(path), turns.sessions)))
        answer = replace(answer, baseline=request.baseline)
        for line in (*lines(answer), f"store: {path}"):
            log(line)
        keep(answer)
        return answer.exit_code

    asked = AbRequest(a="", b="", run=with_rounds(request.run), tolerance=TOLERANCE, alpha=ALPHA, go_on=request.go_on())
    return measure(asked, console, told, enough)


def with_rounds(run: TrainingRequest) -> TrainingRequest:
    """The request with what a pilot does where nobody asks for something else; without a suite it is resumed as it was
    planned, and nothing can be asked for."""
    if run.suite is None:
        return run
    run = replace(run, label=LABEL if run.label is None and not run.resume else run.label)
    asked = replace(run, options={**IN_TURNS, "launches": MOST_PAIRS, **run.options})
    if "rounds" in run.options:
        return asked
    cases = plan_training(asked, load_suite(str(run.suite)), this_machine(), turns=True).plan.cases
    alone = alone_of(cases)
    turns = [case for case in cases if case.id not in alone]
    rounds = TURNS[turns[0].device] // len(turns) // 2 * 2 if turns else 0
    return replace(asked, options={**asked.options, "rounds": max(FEWEST_ROUNDS, rounds) if turns else 0})
