"""Faults of ranks: a rank is killed, stops, exits, raises or exceeds a memory limit, or all launches of a case fail."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from tests.faults.subject import (
    EVERY,
    FOLDER,
    HANDING_OVER,
    KINDS,
    LEAVES,
    MEMORY_GROUP,
    PHASES,
    RAISES,
    STEPPING,
    TAKES_MEMORY,
    Fault,
)
from tests.faults.trial import LAUNCHES, STEPS, CannotTry, Row, Trial, Verdict

# The recorded status of a launch with a fault.
STATUS = {
    "SIGKILL": "crashed", "SIGSEGV": "crashed", LEAVES: "crashed", RAISES: "failed", "SIGSTOP": "hung",
    TAKES_MEMORY: "crashed",
}  # fmt: skip

# Seconds until a rank counts as hung: many times the duration of a launch, because the machine may be busy.
DEADLINE = ("--deadline", "15")


def random_fault(random: Random, kind: str) -> Fault:
    """Return a fault of that kind in a random phase. A rank that hands over its facts cannot raise any more."""
    phase = random.choice([each for each in PHASES if not (kind == RAISES and each == HANDING_OVER)])
    step = random.randrange(STEPS) if phase == STEPPING else 0
    return Fault(kind, phase, rank=random.randrange(2), launch=random.randrange(LAUNCHES), step=step)


def check_blame(trial: Trial, rows: list[Row], fault: Fault) -> None:
    """Check that at most one launch failed, with the right status, and that its error names the rank and the signal."""
    trial.check_statuses(rows, [STATUS[fault.kind]], most=1)
    struck = [row for row in rows if row.status != "ok"]
    if fault.launch < 2 and not struck:  # a launch with one case
        trial.violation("wrong_status", "the fault is not reported")
    by_signal = {"SIGKILL": "SIGKILL", "SIGSEGV": "SIGSEGV", TAKES_MEMORY: "SIGKILL"}.get(fault.kind)
    for row in struck:
        told = fault.kind != TAKES_MEMORY or "out-of-memory killer" in (row.error or "")
        if (row.rank, row.signal) != (fault.rank, by_signal) or not told:
            trial.violation("wrong_status", f"blamed: rank {row.rank}, {row.signal}, {row.error}")


def rank_struck(random: Random) -> Verdict:
    """A fault happens in one rank of one launch; the session continues."""
    fault = random_fault(random, random.choice(KINDS))
    with Trial(fault) as trial:
        driver = trial.start(*DEADLINE, environment=fault.environment(trial.folder))
        check_blame(trial, trial.check_complete(driver, trial.ended(driver)), fault)
    return trial.verdict


BAD_CASES = '''\
"""Which of these works?"""

from parabench import Protocol, sweep

CASES = sweep(strategy=("tests.faults.subject:crashing", "tests.faults.subject:hanging", "tests.faults.subject:wrong",
                        "ddp"), world_size=2, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=2, instrumented=1, deadline_s=12{more})
'''
ALLOWED = {"crashing": {"crashed"}, "hanging": {"hung"}, "wrong": {"wrong", "ok"}, "ddp": {"ok"}}


def bad_cases(random: Random) -> Verdict:
    """One case always crashes, one always hangs, and one is sometimes wrong, in separate or interleaved launches."""
    interleaved = random.random() < 0.5
    with Trial("interleaved" * interleaved, BAD_CASES.format(more=", rounds=2" if interleaved else "")) as trial:
        # A case has two separate launches, and the second is wrong.
        every = str(random.choice((2, 3)) if interleaved else 2)
        driver = trial.start(environment={EVERY: every, FOLDER: str(trial.folder)})
        repetitions = 3 if interleaved else 2
        rows = trial.check_complete(driver, trial.ended(driver), cases=4, repetitions=repetitions)
        for row in rows:
            if row.repetition >= 0 and row.status not in ALLOWED[row.case.split("-")[0]]:
                trial.violation("wrong_status", f"{row.case}, repetition {row.repetition}: {row.status}, {row.error}")
        if not any(row.status == "wrong" for row in rows):
            trial.violation("wrong_status", "no wrong launch was detected")
        trial.check_output(driver, "crashed: rank 1: ended by SIGKILL", "hung: ", last=False)
    return trial.verdict


# -- memory

# The folders of control groups of version 2 and 1, and the file of each that has the limit.
GROUPS = {Path("/sys/fs/cgroup"): "memory.max", Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes"}
# The limit of a rank, which only joins the group when the fault strikes, and of a whole session.
RANK_BYTES, SESSION_BYTES = 64 * 2**20, 1536 * 2**20


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Make a separate control group with a memory limit. Raises CannotTry if that is impossible."""
    for top, limit in GROUPS.items():
        group = top / f"parabench-trial-{uuid.uuid4().hex[:8]}"
        if not (top / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
            (group / limit).write_text(str(limit_bytes))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group
        finally:
            _remove(group)
        return
    raise CannotTry("no control group with a memory limit can be made here")


def _remove(group: Path) -> None:
    """Kill the processes of a group, wait until they have left it, and remove it."""
    until = time.monotonic() + 30
    while True:
        for each in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(each), signal.SIGKILL)
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def rank_out_of_memory(random: Random) -> Verdict:
    """A rank exceeds its memory limit in any phase. It is killed and reported, and the session continues."""
    fault = random_fault(random, TAKES_MEMORY)
    with memory_group(RANK_BYTES) as group, Trial(fault) as trial:
        environment = {**fault.environment(trial.folder), MEMORY_GROUP: str(group)}
        driver = trial.start(*DEADLINE, environment=environment)
        check_blame(trial, trial.check_complete(driver, trial.ended(driver)), fault)
    return trial.verdict


def session_out_of_memory(random: Random) -> Verdict:
    """A rank takes all memory of a whole session, as in a container. The session reports it, or is resumed."""
    fault = random_fault(random, TAKES_MEMORY)
    with memory_group(SESSION_BYTES) as group, Trial(fault) as trial:
        environment = {**fault.environment(trial.folder), MEMORY_GROUP: str(group)}
        into = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *trial.command()]
        driver = trial.start(command=into, environment=environment)
        trial.check_exit(driver, trial.ended(driver), 0, 1, 2, -signal.SIGKILL)
        trial.check_left_behind()
        for rows in (trial.check_kept(driver), trial.resume()):
            trial.check_statuses(rows, ["crashed", "failed"], most=1)
    return trial.verdict


FAMILIES = {
    "rank struck": rank_struck,
    "bad cases in a sweep": bad_cases,
    "rank out of memory": rank_out_of_memory,
    "session out of memory": session_out_of_memory,
}
