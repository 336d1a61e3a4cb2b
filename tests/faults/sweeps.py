"""One case always crashes, one always hangs, and one is sometimes wrong: the sweep continues and reports it."""

from __future__ import annotations

from random import Random

from tests.faults.subject import EVERY, FOLDER
from tests.faults.trial import Row, Trial, Verdict

SUITE = '''\
"""Which of these works?"""

from parabench import Protocol, sweep

CASES = sweep(strategy=("tests.faults.subject:crashing", "tests.faults.subject:hanging", "tests.faults.subject:wrong",
                        "ddp"), world_size=2, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=2, instrumented=1, deadline_s=12{more})
'''
ALLOWED = {"crashing": {"crashed"}, "hanging": {"hung"}, "wrong": {"wrong", "ok"}, "ddp": {"ok"}}


def bad_cases(lot: Random) -> Verdict:
    """Solo, or in turns: each case has all its launches, with the statuses that are its own."""
    turns = lot.random() < 0.5
    with Trial(more=f", rounds={2 if turns else 0}") as trial:
        trial.suite(SUITE.format(more=", rounds=2" if turns else ""))
        # It has two separate launches, and the second is wrong.
        share = str(lot.choice((2, 3)) if turns else 2)
        driver = trial.start(environment={EVERY: share, FOLDER: str(trial.folder)})
        rows = trial.check_complete(driver, trial.ended(driver), cases=4, repetitions=3 if turns else 2)
        _check(trial, rows)
        trial.check_words(driver, "crashed: rank 1: ended by SIGKILL", "hung: ")
    return trial.verdict


def _check(trial: Trial, rows: list[Row]) -> None:
    for row in rows:
        name = row.case.split("-")[0]
        if row.repetition >= 0 and row.status not in ALLOWED[name]:
            trial.verdict.fault("wrong_status", f"{row.case} in repetition {row.repetition}: {row.status}, {row.error}")
    if not any(row.status == "wrong" for row in rows):
        trial.verdict.fault("wrong_status", "nothing was found to be wrong")


FAMILIES = {"bad cases in a sweep": bad_cases}
