"""One rank's part in one launch, in a thread of this process, and what a process that stays can put back before it.

The main thread only waits for it: so it can be asked to stop, or told that the launch is over, while the other is stuck
in a collective. A thread that is stuck is left behind; nothing is launched after it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from parabench.cluster.attached.environment import ProcessEnvironment
from parabench.cluster.attached.monitor import HostMonitor, Readings, Request
from parabench.cluster.heartbeat import KEEP_ALIVE_S
from parabench.files import launch_folder
from parabench.launch import hang
from parabench.launch.node import GROUP_GRACE_S
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rank import error_of, local_device
from parabench.launch.rendezvous import FAILED, HUNG, LaunchContext
from parabench.launch.results import NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload
from parabench.machine import accelerator
from parabench.machine.nvml import Used
from parabench.probes.step_clock import read_counts
from parabench.store.record import SHARED_PROCESSES, Finding
from parabench.workloads.training import TrainingReport

SHARED = Finding(
    SHARED_PROCESSES,
    "All launches share processes that somebody else started. Memory, peaks and compiled code are reset between "
    "launches, and each makes its own process group; allocators, caches and libraries stay warm. Launches therefore "
    "differ by less than fresh processes do, and intervals may be too narrow.",
    "Where you may start processes yourself, use `parabench run`: it gives every launch fresh ones.",
)

# Writing 5 there resets the peak of the resident set ("proc_pid_clear_refs(5)").
CLEAR_REFS = Path("/proc/self/clear_refs")
FORGET_PEAK = "5"

# What a rank whose launch is aborted gets to notice it itself: what it then says may be the cause.
GRACE_S = 0.5


def reset_process() -> bool:
    """Give back what earlier launches left in this process; whether its peak resident set counts anew.

    The random state and the peaks of CUDA's allocator are each launch's own business, which sets them itself.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if accelerator.api().is_initialized():
        # The current device is a thread's own: in this one it is device 0, where a call without a device would make
        # a context, and wait for the wrong one (c10/cuda/CUDAEvent.h says as much of cudaEventElapsedTime).
        accelerator.api().set_device(local_device())
        accelerator.api().synchronize()
        accelerator.api().empty_cache()
    try:
        CLEAR_REFS.write_text(FORGET_PEAK)
    except OSError:
        return False
    return True


class InProcessLaunch:
    """This rank's part in a launch. `over` is set when it has come to its end, well or not.

    `pids` are the process ids of all ranks. The first rank of a host has a `monitor`, which looks at that host and at
    the devices `used`; so has any other rank that alone sees a device.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        workload: Workload,
        group: ProcessEnvironment,
        monitor: HostMonitor | None,
        used: Sequence[Used],
        pids: Sequence[int],
    ) -> None:
        self.over = threading.Event()
        self._spec, self._workload, self._group = spec, workload, group
        self._monitor, self._used, self._pids = monitor, used, pids
        self._began_s = 0.0
        self._counted = False
        self._report: RankReport = workload.report_type(rank=group.rank, reported=False)
        self._readings = Readings()
        self._stack = ExitStack()

    def __enter__(self) -> InProcessLaunch:
        self._began_s = time.perf_counter()
        self._counted = reset_process()
        self.folder = self._stack.enter_context(launch_folder())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_monitor()
        self._stack.close()

    @property
    def ok(self) -> bool:
        """Whether it has come to its end, and well."""
        return self.over.is_set() and self._report.error is None

    def run(self, context: LaunchContext, deadline_s: float) -> NodeResult:
        """Measure until this rank comes to its end, the launch is aborted, or `deadline_s` have passed."""
        group, until = self._group, time.monotonic() + deadline_s
        if self._monitor:
            first = group.rank - group.local_rank
            self._monitor.begin(
                Request(
                    self.folder,
                    self._began_s,
                    {rank: self._pids[rank] for rank in range(first, first + context.local_world_size)},
                    host=group.local_rank == 0,
                    devices=self._used if self._spec.device == accelerator.TYPE else (),
                )
            )
        env = RankEnv(
            folder=self.folder,
            timeout_s=deadline_s + GROUP_GRACE_S,
            environment={**context.environment, **self._workload.prepare(self._spec, self.folder)},
            rendezvous=context.rendezvous,
        )
        threading.Thread(target=self._measure, args=(env,), name="parabench rank", daemon=True).start()
        while not self.over.wait(KEEP_ALIVE_S) and context.abort.reason is None:
            if time.monotonic() > until:
                context.tell(HUNG)
                context.abort.set(HUNG)
        if self.over.is_set() and not self.ok and context.abort.reason is None:
            context.tell(FAILED)
        return self.result(hung=context.abort.reason == HUNG)

    def result(self, *, hung: bool = False) -> NodeResult:
        """What there is to be seen of it: all, or as far as it came."""
        stacks = self.folder / "stacks"
        if not self.over.wait(GRACE_S) and hung:
            with stacks.open("w") as file:
                faulthandler.dump_traceback(file)
            hang.answer(self.folder, self._group.rank)
        self._end_monitor()
        rank, ok = self._group.rank, self.ok
        return NodeResult(
            node=self._group.node,
            host=socket.gethostname(),
            first_rank=rank,
            began_s=self._began_s,
            outcome=ProcessOutcome(ok=ok, hung=hung and not ok),
            reports=[replace(self._report)],
            marks=[self._workload.marks(self._spec).read(self.folder, rank)],
            tails=[] if ok else [stacks.read_text() if stacks.exists() else ""],
            stacked=[rank] if stacks.exists() else [],
            answers=[] if ok else [hang.read_answer(self.folder, rank)],
            device_samples=self._readings.devices,
            host_samples=self._readings.hosts,
            sampler=self._readings.facts,
            counts=read_counts(self.folder, [rank]),
        )

    def _end_monitor(self) -> None:
        if self._monitor:
            self._readings, self._monitor = self._monitor.end(), None

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
