"""The kernel ends a rank, or the driver, whose control group has no memory left."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from tests.faults.ranks import DEADLINE, fault_by
from tests.faults.subject import MEMORY_GROUP, TAKES_MEMORY
from tests.faults.trial import CannotTry, Trial, Verdict

MIB = 2**20

# Where control groups of version 2 and 1 lie, and the file of each that has the limit.
GROUPS = {Path("/sys/fs/cgroup"): "memory.max", Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes"}
# Enough for what a rank takes until it is struck.
RANK_BYTES = 64 * MIB
# More than a driver, a fork server and ranks of so small a model take together.
SESSION_BYTES = 1536 * MIB


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
    raise CannotTry("no control group with a limit of memory can be made here")


def _remove(group: Path) -> None:
    """Processes that are killed leave their group a moment later."""
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


def rank_out_of_memory(lot: Random) -> Verdict:
    """A rank exceeds the memory limit in any phase. It is killed and reported, and the session continues."""
    fault = fault_by(lot, TAKES_MEMORY)
    with memory_group(RANK_BYTES) as group, Trial() as trial:
        environment = {**fault.environment(trial.folder), MEMORY_GROUP: str(group)}
        driver = trial.start(*DEADLINE, environment=environment)
        rows = trial.check_complete(driver, trial.ended(driver))
        trial.check_statuses(rows, ["crashed"], most=1)
        alone = fault.launch in (0, 1)
        struck = [row for row in rows if row.status != "ok"]
        if alone and not struck:
            trial.verdict.fault("wrong_status", "nothing is told of the fault")
        for row in struck:
            if (row.rank, row.signal) != (fault.rank, "SIGKILL") or "out-of-memory killer" not in (row.error or ""):
                trial.verdict.fault("wrong_status", f"blamed: rank {row.rank}, {row.signal}, {row.error}")
    trial.verdict.words[:] = [f"{fault}: {each}" for each in trial.verdict.words]
    return trial.verdict


def session_out_of_memory(lot: Random) -> Verdict:
    """The whole session shares a limit, as in a container, and a rank takes all memory. The kernel kills the largest
    process; the session reports it, or is resumed.
    """
    fault = fault_by(lot, TAKES_MEMORY)
    with memory_group(SESSION_BYTES) as group, Trial() as trial:
        environment = {**fault.environment(trial.folder), MEMORY_GROUP: str(group)}
        into = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *trial.command()]
        driver = trial.start(command=into, environment=environment)
        code = trial.ended(driver)
        trial.check_exit(driver, code, 0, 1, 2, -signal.SIGKILL)
        trial.check_orphans()
        trial.check_statuses(trial.check_kept(driver), ["crashed", "failed"], most=1)
        trial.check_statuses(trial.resume(), ["crashed", "failed"], most=1)
    trial.verdict.words[:] = [f"{fault}: {each}" for each in trial.verdict.words]
    return trial.verdict


FAMILIES = {
    "rank out of memory": rank_out_of_memory,
    "session out of memory": session_out_of_memory,
}
