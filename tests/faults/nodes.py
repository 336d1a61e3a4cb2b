"""Faults in sessions on two nodes: a node ends, is killed or stopped, the link is cut, or a rank fails.

The nodes are network namespaces of this machine with one rank each, so these trials need root.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from random import Random
from threading import Lock

import psutil

from benchmarks.hosts import Host, NoNodes, hosts
from parabench.errors import DEAD_AFTER_S
from tests.faults import ranks
from tests.faults.subject import KINDS
from tests.faults.trial import ORPHANS_S, CannotTry, Row, Trial, Verdict

PORT = 29400

# A node is waited for so long: longer than two of them may begin apart on a machine that others use too.
TIMEOUT_S = 12.0

# The exit codes of a node that was stopped, of a node that waited too long, and of a session that ended early.
STOPPED, WRONG, NOT_OK = 130, 2, 1

# A launch whose node or link is gone while its ranks find one another, work, or are waited for.
GONE = ("crashed", "failed", "hung")

_measuring = Lock()


class TwoNodes(Trial):
    """A session on two nodes, each with one rank of every launch. Node 0 keeps the store."""

    def __init__(self, made: Sequence[Host], timeout_s: float = TIMEOUT_S) -> None:
        super().__init__()
        self.hosts, self._timeout_s = made, timeout_s

    def node(self, number: int, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the driver of that node."""
        words = [sys.executable, "-m", "parabench", "run", "mine.py", "--nnodes", "2", "--nproc-per-node", "1"]
        words += ["--rdzv-endpoint", f"{self.hosts[0].address}:{PORT}", "--rdzv-timeout", f"{self._timeout_s:g}"]
        words += ["--out", "results" if number == 0 else "results1", *ranks.DEADLINE, *options]
        return self.start(environment=environment, command=self.hosts[number].command(words))

    def both(self, *options: str, environment: Mapping[str, str] | None = None) -> list[subprocess.Popen[bytes]]:
        """Start the drivers of both nodes."""
        return [self.node(number, *options, environment=environment) for number in (0, 1)]

    def check_empty(self, number: int) -> None:
        """Nothing runs on that node."""
        until = time.monotonic() + ORPHANS_S
        while (left := self.hosts[number].processes()) and time.monotonic() < until:
            time.sleep(0.05)
        if left:
            told = [" ".join(psutil.Process(pid).cmdline())[:100] for pid in left if psutil.pid_exists(pid)]
            self.verdict.fault("orphans", f"on node {number}: {told}")

    def check_words(self, drivers: Sequence[subprocess.Popen[bytes]]) -> None:
        """Check that the last lines of a driver that ended early have the reason and the command to resume."""
        zero, one = drivers
        if zero.returncode in (STOPPED, NOT_OK) and "the session ends here" in self.said(zero):
            self.check_says(zero, "the session ends here: ", "resume with: parabench run --resume")
        if zero.returncode == STOPPED and self.rows():
            self.check_says(zero, "stopped by", "parabench")
        if zero.returncode == WRONG:
            self.check_says(zero, "node 1", "--rdzv-timeout")
        if one.returncode == WRONG:
            self.check_says(one, "node 0")

    def resume_both(self) -> list[Row]:
        """Resume the session on both nodes, or start it if there is none, and check that it completes."""
        before = self.rows()
        drivers = self.both("--resume")
        code = self.ended(drivers[0])
        if code == WRONG and "run without --resume" in self.said(drivers[0]) and not before:
            self.ended(drivers[1])
            drivers = self.both()
            code = self.ended(drivers[0])
        rows = self.check_complete(drivers[0], code, before)
        if (other := self.ended(drivers[1])) != code:
            self.verdict.fault("wrong_exit", f"node 1 ended with {other}: {self.said(drivers[1])[-300:]!r}")
        self.check_orphans()
        return rows


@contextmanager
def two_nodes(count: int = 2) -> Iterator[TwoNodes]:
    """Two nodes, and further hosts in their network."""
    try:
        with hosts(count) as made, TwoNodes(made) as trial:
            yield trial
    except NoNodes as why:
        raise CannotTry(str(why)) from why


@cache
def _session_s() -> float:
    with two_nodes() as trial:
        began = time.monotonic()
        for each in trial.both():
            trial.ended(each)
        return time.monotonic() - began


def moment_s(lot: Random) -> float:
    """Return a random time within a session, in seconds from its start."""
    with _measuring:
        return lot.uniform(0.0, _session_s())


def _end(trial: TwoNodes, drivers: Sequence[subprocess.Popen[bytes]], allowed: Sequence[Sequence[int]]) -> list[Row]:
    """Check that both drivers end with an `allowed` code and leave nothing behind. Return the stored rows."""
    for driver, codes in zip(drivers, allowed, strict=True):
        trial.check_exit(driver, trial.ended(driver), *codes)
    trial.check_orphans()
    rows = trial.check_kept(drivers[0])
    trial.check_words(drivers)
    return rows


def told_to_end(lot: Random, number: int) -> Verdict:
    """Stop or kill a node. Then resume the session, or start that node again at once."""
    told = lot.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    with two_nodes() as trial:
        drivers = trial.both()
        time.sleep(moment_s(lot))
        if drivers[number].poll() is None:
            drivers[number].send_signal(told)
        if told == signal.SIGKILL:
            drivers[number].wait()
            trial.check_empty(number)
            again = number == 1 and drivers[0].poll() is None and lot.random() < 0.5
            if again:
                drivers[1] = trial.node(1)
        # If a node is stopped before it has met the other one, the other one waits until its timeout.
        own, other = (-told, STOPPED, 0), (STOPPED, 0, 1, WRONG)
        if told == signal.SIGKILL:
            own = (-told, 0, 1, WRONG)
            other = (0, 1, WRONG)
        rows = _end(trial, drivers, (own, other) if number == 0 else (other, own))
        trial.check_statuses(rows, GONE if told == signal.SIGKILL else (), most=int(told == signal.SIGKILL))
        after = trial.resume_both()
        trial.check_statuses(after, GONE if told == signal.SIGKILL else (), most=int(told == signal.SIGKILL))
    trial.verdict.words[:] = [f"{told.name}: {each}" for each in trial.verdict.words]
    return trial.verdict


def follower_told_to_end(lot: Random) -> Verdict:
    """The node without the store."""
    return told_to_end(lot, 1)


def keeper_told_to_end(lot: Random) -> Verdict:
    """Node 0, which has the store."""
    return told_to_end(lot, 0)


def stands_still(lot: Random) -> Verdict:
    """Pause the driver of a node: shortly, for longer than the others wait, or forever."""
    number, for_s = lot.randrange(2), lot.choice([lot.uniform(0.1, 3.0), DEAD_AFTER_S + 4.0, None])
    with two_nodes() as trial:
        drivers = trial.both()
        time.sleep(moment_s(lot))
        with suppress(ProcessLookupError):
            drivers[number].send_signal(signal.SIGSTOP)
        if for_s is None:
            trial.ended(drivers[1 - number])
            drivers[number].send_signal(signal.SIGKILL)
        else:
            time.sleep(for_s)
            drivers[number].send_signal(signal.SIGCONT)
        codes = [(0, 1, WRONG), (0, 1, WRONG)]
        if for_s is None:
            codes[number] = (0, 1, -signal.SIGKILL)
        _check_lost_launch(trial, _end(trial, drivers, codes))
    trial.verdict.words[:] = [f"node {number} for {for_s} s: {each}" for each in trial.verdict.words]
    return trial.verdict


def link_cut(lot: Random) -> Verdict:
    """Cut the link between the nodes: shortly, for longer than they wait for a sign of life, or forever."""
    for_s = lot.choice([lot.uniform(0.1, 4.0), DEAD_AFTER_S + 4.0, None])
    with two_nodes() as trial:
        drivers = trial.both()
        time.sleep(moment_s(lot))
        trial.hosts[1].link(False)
        if for_s is not None:
            time.sleep(for_s)
            trial.hosts[1].link(True)
        rows = _end(trial, drivers, ((0, 1, WRONG), (0, 1, WRONG)))
        if for_s is None:
            trial.hosts[1].link(True)
        _check_lost_launch(trial, rows)
    trial.verdict.words[:] = [f"cut for {for_s} s: {each}" for each in trial.verdict.words]
    return trial.verdict


def _check_lost_launch(trial: TwoNodes, rows: list[Row]) -> None:
    """Check that at most one launch failed, and that the resumed session is complete."""
    trial.check_statuses(rows, GONE, most=1)
    trial.check_statuses(trial.resume_both(), GONE, most=1)


def rank_struck(lot: Random) -> Verdict:
    """Let a rank of a launch fail, on either node. Everything else must continue on both."""
    fault = ranks.fault_by(lot, lot.choice(KINDS))
    with two_nodes() as trial:
        drivers = trial.both(environment=fault.environment(trial.folder))
        code = trial.ended(drivers[0])
        other = trial.ended(drivers[1])
        rows = trial.check_complete(drivers[0], code)
        trial.check_statuses(rows, [ranks.STATUS[fault.kind]], most=1)
        ranks.check_blame(trial, rows, fault)
        if other != code:
            trial.verdict.fault("wrong_exit", f"node 1 ended with {other}, node 0 with {code}")
        if code == 1 and not trial.said(drivers[1]).count(f"on node {fault.rank} (h{fault.rank})"):
            trial.verdict.fault("wrong_words", f"node 1 does not name the node: {trial.said(drivers[1])[-300:]!r}")
    trial.verdict.words[:] = [f"{fault}: {each}" for each in trial.verdict.words]
    return trial.verdict


FAMILIES = {
    "follower told to end": follower_told_to_end,
    "node 0 told to end": keeper_told_to_end,
    "node stands still": stands_still,
    "link cut": link_cut,
    "rank struck on two nodes": rank_struck,
}
