"""A rank that dies, stops, leaves or fails: in each phase, in launches of one case and in those that cases share."""

from __future__ import annotations

from random import Random

from tests.faults.subject import (
    HANDING_OVER,
    HANGS,
    KINDS,
    LEAVES,
    PHASES,
    RAISES,
    STEPPING,
    Fault,
)
from tests.faults.trial import LAUNCHES, STEPS, Row, Trial, Verdict

# The recorded status of a launch with a fault.
STATUS = {
    "SIGKILL": "crashed",
    "SIGSEGV": "crashed",
    LEAVES: "crashed",
    RAISES: "failed",
    "SIGSTOP": "hung",
    HANGS: "hung",
}

# A rank that hangs is waited for so long, by case: many times what a launch takes, on a machine that others use too.
DEADLINE = ("--deadline", "15")


def strikes(lot: Random) -> Verdict:
    """One rank of one launch is struck, and all else goes on."""
    fault = fault_by(lot, lot.choice(KINDS))
    with Trial() as trial:
        driver = trial.start(*DEADLINE, environment=fault.environment(trial.folder))
        rows = trial.check_complete(driver, trial.ended(driver))
        trial.check_statuses(rows, [STATUS[fault.kind]], most=1)
        check_blame(trial, rows, fault)
    trial.verdict.words[:] = [f"{fault}: {each}" for each in trial.verdict.words]
    return trial.verdict


def fault_by(lot: Random, kind: str) -> Fault:
    """A fault of that kind, somewhere; a rank that hands over its facts has written them before."""
    phase = lot.choice([each for each in PHASES if not (kind == RAISES and each == HANDING_OVER)])
    step = lot.randrange(STEPS) if phase == STEPPING else 0
    return Fault(kind, phase, rank=lot.randrange(2), launch=lot.randrange(LAUNCHES), step=step)


def check_blame(trial: Trial, rows: list[Row], fault: Fault) -> None:
    """Check that the failure of a launch with one case names the rank and the fault."""
    alone = fault.launch < 2
    struck = [row for row in rows if row.status != "ok"]
    if alone and not struck:
        trial.verdict.fault("wrong_status", "nothing is told of the fault")
    for row in struck:
        wanted = fault.kind if fault.kind in ("SIGKILL", "SIGSEGV") else None
        if (row.rank, row.signal) != (fault.rank, wanted):
            trial.verdict.fault("wrong_status", f"blamed: rank {row.rank}, {row.signal}, {row.error}")


FAMILIES = {"rank struck": strikes}
