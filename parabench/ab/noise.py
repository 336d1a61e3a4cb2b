"""`parabench noise`: a pilot of two equal variants, and the slowdown that `ab` can detect here in a given time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from rich.console import Console

from parabench.ab.agent import IN_TURNS, alone_of
from parabench.ab.driver import AbRequest, measure
from parabench.analysis.answer import Answer
from parabench.analysis.compare.sides import sides_of
from parabench.analysis.noise import lines, pilot_of, sensitivity
from parabench.machine import accelerator
from parabench.machine.machine import this_machine
from parabench.session.progress import logger
from parabench.session.request import Request, plan_training
from parabench.store.results import load
from parabench.store.store import STORE_NAME

# The most pairs of a pilot. They determine its standard deviation to within a sixth.
MOST_PAIRS = 60
# The turns of a variant in a launch of a pilot, of all cases together, and the fewest rounds: twenty cases on two cores
# make ten pairs in minutes. On an accelerator turns are shorter, and launches start later.
TURNS, FEWEST_ROUNDS = {"cpu": 24, accelerator.TYPE: 80}, 4
LABEL = "noise"


def run_noise(run: Request, minutes: float, console: Console, files: Sequence[str] = ()) -> Answer | None:
    """Measure the pilot, print its answer, and return it; None if stopped.

    `files` are the options of output files, as typed. Raises UsageError before anything is launched, and if a variant
    ends early.
    """
    start, last, log, path = monotonic(), [monotonic()], logger(console), run.out / STORE_NAME

    def enough(sessions: Sequence[int]) -> bool:
        """Return whether the next pair would end too late."""
        now = monotonic()
        pair_s, last[0] = now - last[0], now
        return now + pair_s - start > 60 * minutes

    go_on = ["parabench", "noise", "--resume", "--minutes", f"{minutes:g}", *files, "--out", str(run.out)]
    turns = measure(AbRequest(a="", b="", run=with_rounds(run), go_on=shlex.join(go_on)), console, enough)
    if turns is None:
        return None
    answer = sensitivity(pilot_of(*sides_of(load(path), turns.sessions)))
    for line in (*lines(answer), f"store: {path}"):
        log(line)
    return answer


def with_rounds(run: Request) -> Request:
    """Return the request with a pilot's defaults. Without a suite, the stored plan is resumed unchanged."""
    if run.suite is None:
        return run
    run = replace(run, label=LABEL if run.label is None and not run.resume else run.label)
    wanted = replace(run, options={**IN_TURNS, "launches": MOST_PAIRS, **run.options})
    if "rounds" in run.options:
        return wanted
    cases = plan_training(wanted, this_machine(), turns=True).plan.cases
    alone = alone_of(cases)
    turns = [case for case in cases if case.id not in alone]
    # With an even number both variants have the first turn equally often.
    rounds = max(FEWEST_ROUNDS, TURNS[turns[0].device] // len(turns) // 2 * 2) if turns else 0
    return replace(wanted, options={**wanted.options, "rounds": rounds})
