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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

from parabench.cluster.attached.fresh import reset_process
from parabench.cluster.attached.monitor import HostMonitor, Readings, Request
from parabench.cluster.attached.store import SharedStore
from parabench.files import launch_folder
from parabench.launch import hang
from parabench.launch.node import GROUP_GRACE_S
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rank import error_of
from parabench.launch.results import NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload
from parabench.machine import accelerator
from parabench.machine.nvml import Used
from parabench.probes.step_clock import read_counts
from parabench.workloads.training_samples import TrainingReport

# What a rank that was told to end gets to notice it itself: what it then says may be the cause.
GRACE_S = 0.5


class InProcessLaunch:
    """Measures from the beginning of its block on; `over` is set when this rank has come to its end, well or not.

    `pids` are the process ids of all ranks. The first rank of a host has a `watch`, which looks at that host and at the
    devices `used`; so has any other rank that alone sees a device.
    """

    def __init__(
        self,
        grounds: SharedStore,
        watch: HostMonitor | None,
        used: Sequence[Used],
        pids: list[int],
        number: int,
        order: LaunchSpec,
        workload: Workload,
    ) -> None:
        self.over = threading.Event()
        self._group, self._spec, self._workload = grounds.group, order, workload
        self._began_s = time.perf_counter()
        self._counted = reset_process()
        self._report: RankReport = workload.report_type(rank=self._group.rank, reported=False)
        self._stack = ExitStack()
        self.folder = self._stack.enter_context(launch_folder())
        self._watch, self._seen = watch, Readings()
        first = self._group.rank - self._group.local_rank
        self._ask = Request(
            self.folder,
            self._began_s,
            {rank: pids[rank] for rank in range(first, first + order.ranks_per_node)} if watch else {},
            host=self._group.local_rank == 0,
            devices=used if order.device == accelerator.TYPE else (),
        )
        env = RankEnv(
            folder=self.folder,
            timeout_s=order.deadline_s + GROUP_GRACE_S,
            environment={**grounds.environment, **workload.prepare(order, self.folder)},
            meeting=grounds.meeting(number, order),
        )
        self._thread = threading.Thread(target=self._measure, args=(env,), name="parabench rank", daemon=True)

    def __enter__(self) -> InProcessLaunch:
        if self._watch:
            self._watch.begin(self._ask)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look_no_more()
        self._stack.close()

    def _look_no_more(self) -> None:
        if self._watch:
            self._seen, self._watch = self._watch.end(), None

    @property
    def ok(self) -> bool:
        """Whether it has come to its end, and well."""
        return self.over.is_set() and self._report.error is None

    def part(self, *, hung: bool = False) -> NodeResult:
        """What there is to be seen of it: all, or as far as it came."""
        stacks = self.folder / "stacks"
        if not self.over.wait(GRACE_S) and hung:
            with stacks.open("w") as file:
                faulthandler.dump_traceback(file)
            hang.answer(self.folder, self._group.rank)
        self._look_no_more()
        rank, node, ok = self._group.rank, self._group.node, self.ok
        return NodeResult(
            node=node,
            host=socket.gethostname(),
            first_rank=rank,
            began_s=self._began_s,
            outcome=ProcessOutcome(ok=ok, hung=hung and not ok),
            reports=[replace(self._report)],
            marks=[self._workload.marks(self._spec).read(self.folder, rank)],
            tails=[] if ok else [stacks.read_text() if stacks.exists() else ""],
            stacked=[rank] if stacks.exists() else [],
            answers=[] if ok else [hang.read_answer(self.folder, rank)],
            device_samples=[sample._replace(node=node) for sample in self._seen.devices],
            host_samples=[sample._replace(node=node) for sample in self._seen.hosts],
            sampler=self._seen.facts,
            counts=read_counts(self.folder, [rank]),
        )

    def _measure(self, env: RankEnv) -> None:
        os.environ.update(env.environment)
        rank = self._group.rank
        try:
            report = self._workload.measure(self._spec, env, rank)
            json.dumps(report.to_dict())
            if not self._counted and isinstance(report, TrainingReport):
                # It is the highest since the process began: another launch's, perhaps.
                report.numbers.pop("peak_rss_bytes", None)
            self._report = report
        except BaseException as error:
            hang.settle()
            self._report = self._workload.report_type(rank=rank, error=error_of(error))
        self.over.set()
