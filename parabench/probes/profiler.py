"""Additional steps for torch's own tools: traces of torch.profiler, snapshots of the CUDA allocator, FLOP counts.

No statistic uses the times of these steps. Files are written after the last step.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from parabench.machine import accelerator
from parabench.models.batches import Batch
from parabench.probes import CaseReport, Probe, ProbedRank
from parabench.strategies.base import Compute

STEP_NAME = "ProfilerStep#"


class ProfilerProbe(Probe):
    """Take additional steps under torch's profiler or with a history of allocations, if the schedule requests it."""

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


def count_flops(compute: Compute, batches: Iterator[Batch]) -> dict[str, Any]:
    """Count the floating-point operations of forward and backward of the next batch with torch's FlopCounterMode.

    Return {"counted": FLOP, "by": {operation: FLOP}}, or {"counted": None, "reason": why}. Only matrix products,
    convolutions and attention are counted. The gradients are not cleared.
    """
    try:
        # A CUDA build of torch imports triton here.
        from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

        aten = torch.ops.aten
        # The counter does not have the CPU's attention. It has the same first arguments as CUDA's.
        attention = {
            aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
            aten._scaled_dot_product_flash_attention_for_cpu_backward: (
                lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
            ),
        }
        batch = next(batches)
        no_clock: Any = SimpleNamespace(mark=lambda: None, skip=lambda: None)
        counter = FlopCounterMode(display=False, custom_mapping=attention)
        with counter:
            compute(batch, no_clock)
    # A custom model may fail here. The training run has ended.
    except Exception as error:
        return {"counted": None, "reason": f"the counter failed: {type(error).__name__}: {error}"[:500]}
    counted = int(counter.get_total_flops())
    if not counted:
        return {"counted": None, "reason": "torch's counter does not have the model's operations"}
    by = {str(operation).removeprefix("aten."): int(n) for operation, n in counter.get_flop_counts()["Global"].items()}
    return {"counted": counted, "by": by}
