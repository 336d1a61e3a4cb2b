"""Additional steps on request: torch.profiler's trace, and a snapshot of torch's CUDA allocator.

No statistic uses them. Files are written after the last step.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from parabench.machine import accelerator
from parabench.probes import CaseReport, Probe, ProbedRank

STEP_NAME = "ProfilerStep#"


class ProfilerProbe(Probe):
    """Record single steps if the protocol requests it."""

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        self._device = rank.info.device
        self._on_cuda = self._device.type == accelerator.TYPE
        self._profile: profile | None = None

    def after_instrumented(self) -> None:
        if self.rank.schedule.profile:
            self._profiled()
        if self.rank.schedule.memory_snapshot:
            if self._on_cuda:
                # Names of C++ frames would take a minute.
                accelerator.api().memory._record_memory_history(stacks="python")
            self.rank.take_step()  # on the CPU, without a history

    def _profiled(self) -> None:
        """Take a step under torch.profiler, with the operators of all threads and their shapes."""
        activities = [ProfilerActivity.CPU]
        if self._on_cuda:
            activities.append(getattr(ProfilerActivity, accelerator.TYPE.upper()))
        # Autograd's threads and the queue of a custom algorithm belong to the step, too.
        config = _ExperimentalConfig(profile_all_threads=True)
        # Readers of traces expect this name of a step.
        named = f"{STEP_NAME}{self.rank.clock.steps}"
        recording = profile(activities=activities, record_shapes=True, experimental_config=config)
        with recording as self._profile, record_function(named):
            self.rank.take_step()
            accelerator.synchronize(self._device)

    def report(self, report: CaseReport) -> None:
        """Write the files, and add the facts {"profile" or "memory_snapshot": {"file", "bytes"}}."""
        stem = self.rank.traces
        if stem is None:
            return
        start = f"{stem.name}-rank{self.rank.info.rank}"
        if self._profile is not None:
            path = stem.with_name(f"{start}.json.gz")
            _export(self._profile, path)
            report.rank_facts["profile"] = _file(path)
        if self._on_cuda and self.rank.schedule.memory_snapshot:
            path = stem.with_name(f"{start}.pickle")
            accelerator.api().memory._dump_snapshot(str(path))
            accelerator.api().memory._record_memory_history(enabled=None)
            report.rank_facts["memory_snapshot"] = _file(path)


def _export(seen: profile, path: Path) -> None:
    """Write the compressed trace. Replace the path in it, which torch adds, by the name of the file."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "trace.json")
        seen.export_chrome_trace(str(plain))
        text = plain.read_bytes()
    at = text.rfind(b'"traceName"')
    named = re.sub(rb'(?<="traceName": ")[^"]*', path.name.encode(), text[at:]) if at >= 0 else b""
    with gzip.open(path, "wb") as file:
        file.write(text[:at] if at >= 0 else text)
        file.write(named)


def _file(path: Path) -> dict[str, Any]:
    return {"file": path.name, "bytes": path.stat().st_size}
