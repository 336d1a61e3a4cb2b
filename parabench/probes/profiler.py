"""The steps on request after the instrumented ones: torch.profiler's trace, and a snapshot of torch's CUDA allocator.

They carry far more than a step that is measured, so they are in no statistic. Files are written when all steps are
over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from parabench.machine import accelerator
from parabench.probes import Probe, ProbedRank, ProbeReport


class ProfilerProbe(Probe):
    """Traces of single steps, where the protocol asks for them."""

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        self._device = rank.info.device
        self._on_cuda = self._device.type == accelerator.TYPE
        self._profile: profile | None = None
        self._snapshot = False

    def after_instrumented(self) -> None:
        if self.rank.protocol.profile:
            self.profiled()
        if self.rank.protocol.memory_snapshot:
            self.remembered()

    def report(self, report: ProbeReport) -> None:
        if self.rank.traces is not None:
            report.rank_facts |= self.write(self.rank.traces)

    def profiled(self) -> None:
        """Take a step under torch.profiler: operators of all threads with their shapes, and on CUDA its kernels."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_cuda else [])]
        # Autograd's threads and the queue of an own algorithm belong to the step as well.
        config = _ExperimentalConfig(profile_all_threads=True)
        with profile(activities=activities, record_shapes=True, experimental_config=config) as self._profile:
            self.rank.take_step()
            accelerator.synchronize(self._device)

    def remembered(self) -> None:
        """Take a step while torch's CUDA allocator keeps its history; elsewhere it has none: the step is as ever."""
        if self._on_cuda:
            # C++ frames of every allocation take a minute to be given names.
            accelerator.api().memory._record_memory_history(stacks="python")
            self._snapshot = True
        self.rank.take_step()

    def write(self, stem: Path) -> dict[str, dict[str, Any]]:
        """Write what was recorded: {"profile" or "memory_snapshot": {"file", "bytes"}}, the file's name alone.

        Names begin with `stem`, a path in a folder that is there.
        """
        start = f"{stem.name}-rank{self.rank.info.rank}"
        written = {}
        if self._profile is not None:
            path = stem.with_name(f"{start}.json.gz")
            self._profile.export_chrome_trace(str(path))
            written["profile"] = _file(path)
        if self._snapshot:
            path = stem.with_name(f"{start}.pickle")
            accelerator.api().memory._dump_snapshot(str(path))
            accelerator.api().memory._record_memory_history(enabled=None)
            written["memory_snapshot"] = _file(path)
        return written


def _file(path: Path) -> dict[str, Any]:
    return {"file": path.name, "bytes": path.stat().st_size}
