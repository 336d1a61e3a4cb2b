"""Faults in sessions on two nodes: a node ends, is killed or stopped, the link is cut, or a rank fails.

The nodes are network namespaces of this machine with one rank each, so these trials need root.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from random import Random

import psutil

from benchmarks.hosts import PORT, Host, NoNodes, hosts
from parabench.errors import DEAD_AFTER_S
from tests.faults import ranks
from tests.faults.subject import KINDS
from tests.faults.trial import ORPHANS_S, CannotTry, Row, Trial, Verdict, sleep_within

# Seconds until a missing node is an error: longer than two nodes may start apart on a busy machine.
TIMEOUT_S = 12.0

# The exit codes of a node that was stopped, of a node that waited too long, and of a session that ended early.
STOPPED, WRONG, NOT_OK = 130, 2, 1

# The statuses of a launch whose node or link fails.
GONE = ("crashed", "failed", "hung")


class TwoNodes(Trial):
    """A session on two nodes, each with one rank of every launch. Node 0 keeps the results database."""

    def __init__(self, nodes: Sequence[Host], label: object) -> None:
        super().__init__(label)
        self.hosts = nodes

    def node(self, number: int, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the driver of a node."""
        words = [sys.executable, "-m", "parabench", "run", "mine.py", "--nnodes", "2", "--nproc-per-node", "1"]
        words += ["--rdzv-endpoint", f"{self.hosts[0].address}:{PORT}", "--rdzv-timeout", f"{TIMEOUT_S:g}"]
        words += ["--out", "results" if number == 0 else "results1", *ranks.DEADLINE, *options]
        return self.start(environment=environment, command=self.hosts[number].command(words))

    def both(self, *options: str, environment: Mapping[str, str] | None = None) -> list[subprocess.Popen[bytes]]:
        return [self.node(number, *options, environment=environment) for number in (0, 1)]

    def check_empty(self, number: int) -> None:
        """Check that no process runs on a node."""
        until = time.monotonic() + ORPHANS_S
        while (left := self.hosts[number].processes()) and time.monotonic() < until:
            time.sleep(0.05)
        if left:
            names = [" ".join(psutil.Process(pid).cmdline())[:100] for pid in left if psutil.pid_exists(pid)]
            self.violation("orphans", f"on node {number}: {names}")

    def check_end(self, drivers: Sequence[subprocess.Popen[bytes]], *allowed: Sequence[int]) -> list[Row]:
        """Check that both drivers end with an `allowed` code, leave nothing behind, and print the reason and the
        command to resume. Return the stored rows.
        """
        for driver, codes in zip(drivers, allowed, strict=True):
            self.check_exit(driver, self.ended(driver), *codes)
        self.check_left_behind()
        rows = self.check_kept(drivers[0])
        zero, one = drivers
        if zero.returncode in (STOPPED, NOT_OK) and "the session ends here" in self.output(zero):
            self.check_output(zero, "the session ends here: ", "resume with: parabench run --resume")
        if zero.returncode == STOPPED and rows:
            self.check_output(zero, "stopped by", "parabench")
        if zero.returncode == WRONG:
            self.check_output(zero, "node 1", "--rdzv-timeout")
        if one.returncode == WRONG:
            self.check_output(one, "node 0")
        return rows

    def check_lost_launch(self, rows: list[Row], most: int = 1) -> None:
        """Check that at most one launch failed, and that the session can be resumed to its end."""
        self.check_statuses(rows, GONE, most)
        self.check_statuses(self.resume_both(), GONE, most)

    def resume_both(self) -> list[Row]:
        """Resume the session on both nodes, or start it if there is none, and check that it completes."""
        before = self.rows()
        drivers = self.both("--resume")
        code = self.ended(drivers[0])
        if code == WRONG and "run without --resume" in self.output(drivers[0]) and not before:
            self.ended(drivers[1])
            drivers = self.both()
            code = self.ended(drivers[0])
        rows = self.check_complete(drivers[0], code, before)
        if (other := self.ended(drivers[1])) != code:
            self.violation("wrong_exit", f"node 1 ended with {other}: {self.output(drivers[1])[-300:]!r}")
        self.check_left_behind()
        return rows


@contextmanager
def two_nodes(label: object = "") -> Iterator[TwoNodes]:
    try:
        with hosts(2) as nodes, TwoNodes(nodes, label) as trial:
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


def wait_random_time(random: Random) -> None:
    """Sleep until a random time within a session that was just started."""
    sleep_within(random, _session_s)


def node_stopped(random: Random, number: int) -> Verdict:
    """Stop or kill node `number`. Then resume the session, or start that node again at once."""
    sent = random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    killed = sent == signal.SIGKILL
    with two_nodes(sent.name) as trial:
        drivers = trial.both()
        wait_random_time(random)
        if drivers[number].poll() is None:
            drivers[number].send_signal(sent)
        if killed:
            drivers[number].wait()
            trial.check_empty(number)
            if number == 1 and drivers[0].poll() is None and random.random() < 0.5:
                drivers[1] = trial.node(1)
        # If a node is stopped before it has met the other one, the other one waits until its timeout.
        own = (-sent, 0, 1, WRONG) if killed else (-sent, STOPPED, 0)
        other = (0, 1, WRONG) if killed else (STOPPED, 0, 1, WRONG)
        rows = trial.check_end(drivers, *((own, other) if number == 0 else (other, own)))
        trial.check_lost_launch(rows, most=int(killed))
    return trial.verdict


def node_paused(random: Random) -> Verdict:
    """Pause the driver of a node: shortly, for longer than the others wait, or forever."""
    number, for_s = random.randrange(2), random.choice([random.uniform(0.1, 3.0), DEAD_AFTER_S + 4.0, None])
    with two_nodes(f"node {number} for {for_s} s") as trial:
        drivers = trial.both()
        wait_random_time(random)
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
        trial.check_lost_launch(trial.check_end(drivers, *codes))
    return trial.verdict


def link_cut(random: Random) -> Verdict:
    """Cut the link between the nodes: shortly, for longer than they wait for a heartbeat, or forever."""
    for_s = random.choice([random.uniform(0.1, 4.0), DEAD_AFTER_S + 4.0, None])
    with two_nodes(f"for {for_s} s") as trial:
        drivers = trial.both()
        wait_random_time(random)
        trial.hosts[1].link(False)
        if for_s is not None:
            time.sleep(for_s)
            trial.hosts[1].link(True)
        rows = trial.check_end(drivers, (0, 1, WRONG), (0, 1, WRONG))
        if for_s is None:
            trial.hosts[1].link(True)
        trial.check_lost_launch(rows)
    return trial.verdict


def rank_struck(random: Random) -> Verdict:
    """Let a rank of a launch fail, on either node. Everything else must continue on both."""
    fault = ranks.random_fault(random, random.choice(KINDS))
    with two_nodes(fault) as trial:
        drivers = trial.both(environment=fault.environment(trial.folder))
        code, other = (trial.ended(driver) for driver in drivers)
        ranks.check_blame(trial, trial.check_complete(drivers[0], code), fault)
        if other != code:
            trial.violation("wrong_exit", f"node 1 ended with {other}, node 0 with {code}")
        if code == 1:
            trial.check_output(drivers[1], f"on node {fault.rank} (h{fault.rank})", last=False)
    return trial.verdict


FAMILIES = {
    "follower told to end": partial(node_stopped, number=1),
    "node 0 told to end": partial(node_stopped, number=0),
    "node stands still": node_paused,
    "link cut": link_cut,
    "rank struck on two nodes": rank_struck,
}
