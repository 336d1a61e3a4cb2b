"""A rank that is not rank 0: it takes its part in every launch until rank 0 ends the session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parabench.cluster import fingerprint
from parabench.cluster.attached.attempt import InProcessLaunch
from parabench.cluster.attached.channel import Channel
from parabench.cluster.attached.monitor import HostMonitor
from parabench.cluster.attached.store import SharedStore
from parabench.cluster.heartbeat import KEEP_ALIVE_S
from parabench.launch.context import FAILED, HUNG
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreLost
from parabench.launch.workload import workload_of
from parabench.machine.nvml import Used
from parabench.signals import STOPPED, Interrupted, stop_signals

LOST = 1


class RankAgent:
    """This rank, which says `about` of itself, leaves traces in a folder, and is `sane` as long as no launch failed."""

    def __init__(self, grounds: SharedStore, about: Mapping[str, Any], traces: Path) -> None:
        self.sane = True
        self._grounds, self._about, self._traces = grounds, about, traces
        self._channel = Channel(grounds)
        self._watch = HostMonitor() if grounds.group.local_rank == 0 else None
        self._pids: list[int] = []
        self._used: list[Used] = []

    def follow(self) -> int:
        """Take part until the end; the exit code that rank 0 gives. Raises nothing: rank 0 does the talking."""
        try:
            with stop_signals():
                return self._session()
        except Interrupted as stop:
            self._channel.tell_stop(stop)
            self.sane = False
            return STOPPED
        except StoreLost:
            self.sane = False
            return LOST

    def _session(self) -> int:
        channel, rank, number = self._channel, self._grounds.group.rank, 0
        channel.tell(f"hello/{rank}", self._about)
        while True:
            said = channel.order(number)
            if "end" in said:
                channel.tell(f"bye/{rank}", None)
                return int(said["end"])
            if "begin" in said:
                self._pids = said["begin"]["pids"]
                self._used = [Used(*one) for one in said["begin"]["watched"][rank]]
                if self._used and self._watch is None:
                    self._watch = HostMonitor()
                channel.tell(f"own/{rank}", fingerprint.of_own(said["begin"]["own"]))
            elif rank < (order := LaunchSpec.from_dict(said["order"], self._traces)).world_size:
                self._launch(number, order)
            number += 1

    def _launch(self, number: int, order: LaunchSpec) -> None:
        channel, word = self._channel, None
        workload = workload_of(order.kind)
        with InProcessLaunch(self._grounds, self._watch, self._used, self._pids, number, order, workload) as attempt:
            while word is None and not attempt.over.wait(KEEP_ALIVE_S):
                word = channel.word(number)
            if word is None and not attempt.ok:
                channel.end_launch(number, FAILED)
            part = attempt.part(hung=word == HUNG)
            channel.tell(f"part/{number}/{part.first_rank}", part.to_dict())
        self.sane = self.sane and part.outcome.ok
