"""One rank's part in one launch, in a thread of this process.

The main thread only waits for it: so it can be asked to stop, or told that the launch is over, while the other is stuck
in a collective. A thread that is stuck is left behind; nothing is launched after it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import threading
import time
import traceback
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from parabench.cluster.inside.fresh import freshen
from parabench.cluster.inside.grounds import Grounds
from parabench.cluster.order import Order
from parabench.part import GROUP_GRACE_S, Course, Part
from parabench.probes.devices import Devices
from parabench.probes.host import Host
from parabench.probes.pids import RankPids
from parabench.probes.sampler import Sampler, Source
from parabench.rank import in_a_line, is_out_of_memory
from parabench.ranks import Ended
from parabench.record import DeviceSample, HostSample
from parabench.scratch import launch_folder
from parabench.venue import Venue
from parabench.worker import measure

# What a rank that was told to end gets to notice it itself: what it then says may be the cause.
GRACE_S = 0.5


class Attempt:
    """Measures from the beginning of its block on; `over` is set when this rank has come to its end, well or not.

    `pids` are the process ids of all ranks: the first of a host's looks after all of that host.
    """

    def __init__(self, grounds: Grounds, pids: list[int], number: int, order: Order, course: Course) -> None:
        self.over = threading.Event()
        self._group, self._course = grounds.group, course
        self._began_s = time.perf_counter()
        self._counted = freshen()
        self._result: dict[str, Any] = {"rank": self._group.rank}
        self._stack, self._watching = ExitStack(), ExitStack()
        self.folder = self._stack.enter_context(launch_folder())
        self._host: Host | None = None
        self._devices: Devices | None = None
        self._sampler = self._look(pids, order) if self._group.local_rank == 0 else None
        venue = Venue(
            folder=self.folder,
            timeout_s=order.deadline_s + GROUP_GRACE_S,
            environment=dict(grounds.environment),
            meeting=grounds.meeting(number, order),
        )
        self._thread = threading.Thread(target=self._measure, args=(venue,), name="parabench rank", daemon=True)

    def _look(self, pids: list[int], order: Order) -> Sampler:
        """Look at this host and its ranks."""
        ranks = range(self._group.rank, self._group.rank + order.ranks_per_node)
        for rank in ranks:
            (self.folder / f"pid{rank}").write_text(str(pids[rank]))
        known = RankPids(self.folder, ranks)
        self._host = Host(self._began_s, known)
        sources: list[Source] = [self._host]
        if order.case.device == "cuda":
            self._devices = Devices(self._began_s, known, len(ranks))
            sources.insert(0, self._devices)
        return Sampler(self._began_s, sources)

    def __enter__(self) -> Attempt:
        if self._sampler:
            self._watching.enter_context(self._sampler)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.close()
        self._stack.close()

    @property
    def ok(self) -> bool:
        """Whether it has come to its end, and well."""
        return self.over.is_set() and "error" not in self._result

    def part(self, *, hung: bool = False) -> Part:
        """What there is to be seen of it: all, or as far as it came."""
        stacks = self.folder / "stacks"
        if not self.over.wait(GRACE_S) and hung:
            with stacks.open("w") as file:
                faulthandler.dump_traceback(file)
        self._watching.close()
        rank, node, ok = self._group.rank, self._group.node, self.ok
        devices: list[DeviceSample] = self._devices.samples if self._devices else []
        hosts: list[HostSample] = self._host.samples if self._host else []
        return Part(
            node=node,
            host=socket.gethostname(),
            first_rank=rank,
            began_s=self._began_s,
            ended=Ended(ok=ok, hung=hung and not ok),
            results=[dict(self._result)],
            marks=[self._course.marks(self.folder, rank)],
            tails=[] if ok else [stacks.read_text() if stacks.exists() else ""],
            stacked=[rank] if stacks.exists() else [],
            device_samples=[sample._replace(node=node) for sample in devices],
            host_samples=[sample._replace(node=node) for sample in hosts],
            sampler=self._sampler.facts() if self._sampler else {},
        )

    def _measure(self, venue: Venue) -> None:
        os.environ.update(venue.environment)
        try:
            result = measure(self._course.job(venue), self._group.rank)
            json.dumps(result)
            if not self._counted:
                # It is the highest since the process began: another launch's, perhaps.
                result["numbers"].pop("peak_rss_bytes", None)
            self._result |= result
        except BaseException as error:
            self._result["error"] = {
                "at": time.perf_counter(),
                "message": in_a_line(error),
                "traceback": traceback.format_exc(),
                "oom": is_out_of_memory(error),
            }
        self.over.set()
