"""Rank 0: it keeps the session, gives every launch to all ranks, and takes what they saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from parabench.cluster import fingerprint
from parabench.cluster.attached.attempt import InProcessLaunch
from parabench.cluster.attached.channel import Channel
from parabench.cluster.attached.merged import group_by_node
from parabench.cluster.attached.monitor import HostMonitor
from parabench.cluster.attached.store import BEGIN_S, SharedStore
from parabench.cluster.attached.waiting import Waiting, in_words
from parabench.cluster.heartbeat import KEEP_ALIVE_S
from parabench.errors import UsageError
from parabench.launch.context import FAILED, HUNG, STOP
from parabench.launch.results import NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreLost
from parabench.launch.workload import Workload
from parabench.machine.nvml import Used
from parabench.signals import STOPPED, Interrupted, stop_signals

LOOK_S = 0.005

# What ranks get to hand over what they saw once a launch is over; less when this one is asked to stop, and may be
# killed a moment later.
HAND_OVER_S, LAST_LOOK_S = 5.0, 0.25
GOODBYE_S = 2.0

WRONG = 2


class RankCoordinator:
    """The whole group, as rank 0 has it. `sane` as long as all ranks came to the end of every launch; `stop` is who
    asked for the end while a rank was found to be gone."""

    def __init__(
        self, grounds: SharedStore, about: Mapping[str, Any], traces: Path, say: Callable[[str], None]
    ) -> None:
        self.sane = True
        self._say = say
        self.stop: Interrupted | None = None
        self._grounds, self._traces = grounds, traces
        self._channel = Channel(grounds)
        self._said: dict[int, Mapping[str, Any]] = {0: about}
        self._watch = HostMonitor()
        self._used: Sequence[Used] = ()
        self._next = 0
        self._report_type = RankReport

    # ---- who is there

    def assemble(self) -> list[Mapping[str, Any]]:
        """What every rank says of itself, in their order. Raises UsageError when one does not come or has other
        software or another suite, Interrupted when any is asked to stop."""
        group = self._grounds.group
        with stop_signals():
            self._said |= self._all("hello", range(1, group.size), BEGIN_S)
        if missing := [rank for rank in range(group.size) if rank not in self._said]:
            raise UsageError(
                f"{in_words(missing)} of {group.size} did not come within {BEGIN_S:g} s; start all of them"
            )
        said = [self._said[rank] for rank in range(group.size)]
        for rank, about in enumerate(said):
            if differences := fingerprint.differences(said[0]["facts"], about["facts"]) if about["facts"] else []:
                raise UsageError(f"rank {rank} ({about['host']}) has {'; '.join(differences)}: give all hosts the same")
        return said

    def begin(self, own: Sequence[str], watched: Sequence[Sequence[Used]]) -> None:
        """Let all ranks know of one another, and each of the devices that it is to look at. Raises UsageError when one
        has not the same of the user's `own` code."""
        self._used = watched[0]
        group = self._grounds.group
        pids = [self._said[rank]["pid"] for rank in range(group.size)]
        told = [[astuple(used) for used in each] for each in watched]
        self._publish({"begin": {"pids": pids, "own": list(own), "watched": told}})
        mine = fingerprint.of_own(own)
        with stop_signals():
            theirs = self._all("own", range(1, group.size), BEGIN_S)
        for rank, has in theirs.items():
            if differences := fingerprint.differences(mine, has):
                host = self._said[rank]["host"]
                raise UsageError(f"rank {rank} ({host}) has {'; '.join(differences)}: give all hosts the same")

    def _all(self, what: str, ranks: Sequence[int], seconds: float) -> dict[int, Any]:
        """{rank: what it said} of those that did in time."""
        said: dict[int, Any] = {}
        until, waiting = time.monotonic() + seconds, Waiting(self._say)
        while len(said) < len(ranks) and time.monotonic() < until:
            self._channel.check_stop()
            said |= self._arrived(what, [rank for rank in ranks if rank not in said])
            waiting.still(partial(self._awaited, [rank for rank in ranks if rank not in said], seconds))
            time.sleep(LOOK_S)
        return said

    def _awaited(self, missing: Sequence[int], seconds: float) -> str:
        group = self._grounds.group
        where = f"{group.address} port {group.port}"
        return f"rank 0 waits at {where} for {in_words(missing)} of {group.size}, for up to {seconds:g} s"

    def _arrived(self, what: str, ranks: Sequence[int]) -> dict[int, Any]:
        told = {rank: self._channel.told(f"{what}/{rank}") for rank in ranks}
        return {rank: each for rank, each in told.items() if each is not None}

    # ---- launches

    def run(self, order: LaunchSpec, workload: Workload) -> list[NodeResult]:
        """As `Nodes.run`, in the processes that are there."""
        self._report_type = workload.report_type
        size, number = order.world_size, self._publish({"order": order.to_dict()})
        pids = [said["pid"] for _, said in sorted(self._said.items())]
        parts: dict[int, NodeResult] = {}
        with InProcessLaunch(self._grounds, self._watch, self._used, pids, number, order, workload) as attempt:
            try:
                why = self._wait(attempt, number, order, parts)
                self._take(number, size, parts, HAND_OVER_S if why else 0.0)
            except Interrupted as stop:
                self.sane, why = False, STOP
                if not self._is_echo(attempt, number, size, parts):
                    self._channel.end_launch(number, STOP)
                    raise
                self.stop = stop
            parts[0] = attempt.part(hung=why == HUNG)
            for rank in range(size):
                if rank not in parts:
                    host, node = self._said[rank]["host"], rank // order.ranks_per_node
                    parts[rank] = NodeResult.silent(
                        node, host, range(rank, rank + 1), workload.marks(order), workload.report_type, rank=rank
                    )
        # One rank alone that failed has left no other in the middle of anything.
        ended = all(part.outcome.ok for part in parts.values())
        self.sane = self.sane and (ended or (size == 1 and attempt.over.is_set()))
        return group_by_node(parts, order.ranks_per_node)

    def _wait(
        self, attempt: InProcessLaunch, number: int, order: LaunchSpec, parts: dict[int, NodeResult]
    ) -> str | None:
        """Wait until all ranks are over: None when this one came to its end well and all others said what they saw,
        else why the launch ends. Raises Interrupted when any rank is asked to stop."""
        until, size = time.monotonic() + order.deadline_s, order.world_size
        while not attempt.over.wait(KEEP_ALIVE_S) or (attempt.ok and len(parts) < size - 1):
            if attempt.over.is_set():
                self._take(number, size, parts, KEEP_ALIVE_S)
            self._channel.check_stop()
            if (word := self._channel.word(number)) is not None:
                return word
            if time.monotonic() > until:
                self._channel.end_launch(number, HUNG)
                return HUNG
        if not attempt.ok:
            self._channel.end_launch(number, FAILED)
            return FAILED
        return None

    def _take(self, number: int, size: int, parts: dict[int, NodeResult], seconds: float) -> None:
        """Take what the other ranks saw, as long as some of it is missing and for so many seconds at most."""
        until = time.monotonic() + seconds
        while len(parts) < size - 1:
            missing = [rank for rank in range(1, size) if rank not in parts]
            arrived = self._arrived(f"part/{number}", missing)
            parts |= {rank: NodeResult.from_dict(each, self._report_type) for rank, each in arrived.items()}
            if len(parts) == size - 1 or time.monotonic() > until:
                return
            time.sleep(LOOK_S)

    def _is_echo(self, attempt: InProcessLaunch, number: int, size: int, parts: dict[int, NodeResult]) -> bool:
        """Whether all are asked to stop only because one is gone, as torchrun and mpirun do: then this rank's own
        collectives fail, and that one has said nothing."""
        self._channel.end_launch(number, STOP)
        self._take(number, size, parts, LAST_LOOK_S)
        gone = [rank for rank in range(1, size) if rank not in parts and not self._channel.stops(rank)]
        return bool(gone) and attempt.over.is_set() and not attempt.ok

    # ---- the end

    def end(self, code: int) -> None:
        """Let all ranks go with that exit code, and wait a moment until they have heard of it."""
        with suppress(StoreLost):
            self._publish({"end": code})
            until = time.monotonic() + GOODBYE_S
            left = list(range(1, self._grounds.group.size))
            while left and time.monotonic() < until:
                left = [rank for rank in left if not self._channel.has(f"bye/{rank}")]
                time.sleep(LOOK_S)

    def _publish(self, order: dict[str, Any]) -> int:
        self._channel.publish(self._next, order)
        self._next += 1
        return self._next - 1


@contextmanager
def leading(lead: RankCoordinator) -> Iterator[None]:
    """However the block is left by an error, no rank waits for this one."""
    try:
        yield
    except Interrupted:
        lead.end(STOPPED)
        raise
    except UsageError:
        lead.end(WRONG)
        raise
    except BaseException:
        lead.end(1)
        raise
