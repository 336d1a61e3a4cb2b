"""Communication in the instrumented steps: calls of collectives, their buckets, and waits of the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch.distributed as dist

from parabench.collectives import is_backends
from parabench.collectives.process_group import groups
from parabench.machine import accelerator
from parabench.probes import CaseReport, Probe, ProbedRank, SeenCall
from parabench.probes.backend_calls import coalesced_calls, native_calls, stream_waits
from parabench.probes.collective_calls import BLOCKED_S, Call, Recorder, enable_nccl_timing
from parabench.probes.ddp import Buckets, last_before, only_ddp
from parabench.probes.step_clock import MARKS, AroundClock, Moments, step_of
from parabench.strategies.base import StepMarker


class CommunicationProbe(Probe):
    """Watch calls, waits and DDP's buckets."""

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        case, self._device, self._moments = rank.case, rank.info.device, rank.clock.moments
        # The backend runs the operations that a custom algorithm does not have.
        native = case.algorithm if is_backends(case.algorithm) else "native"
        self.recorder = Recorder(self._moments, self._device, native)
        self._buckets: Buckets | None = None

    @contextmanager
    def instrumented(self, clock: StepMarker) -> Iterator[StepMarker]:
        with ExitStack() as on:
            if self.rank.alone:  # nothing is communicated
                yield clock
                return
            if self._device.type == accelerator.TYPE:
                on.enter_context(stream_waits(self.recorder))
            if dist.is_initialized():
                enable_nccl_timing(self._device)
                on.enter_context(coalesced_calls(self.recorder))
                on.enter_context(native_calls(self.recorder, self._device.type))
                for group in groups:
                    group.observer = self.recorder
                    on.callback(setattr, group, "observer", None)
                if self.rank.case.backend == "gloo":
                    # Its calls are on the host's clock, and steps on the device's. Each step must end on both.
                    clock = SynchronizedClock(clock, self._moments, self.rank.clock.width)
            if (module := only_ddp(self.rank.module)) is not None:
                self._buckets = Buckets(module, self._moments)
                on.callback(self._buckets.stop)
            yield clock
            self.recorder.settle()

    def report(self, report: CaseReport) -> None:
        begins = self.rank.clock.begins()
        self._moments.synchronize()
        self.recorder.let_go()
        seconds = self._moments.seconds
        taken = [call for call in self.recorder.calls if call.taken]
        bucket: dict[int, int | None] = {}
        ready: list[tuple[int, float]] = []
        if self._buckets is not None:
            reduced = [call for call in taken if call.op == "all_reduce"]
            bucket = {id(call): self._buckets.index_of(at, call.bytes) for at, call in enumerate(reduced)}
            ready = self._buckets.ready_s()
        rows = []
        for seq, call in enumerate(self.recorder.calls):
            made = seconds(call.made)
            step = step_of(made, begins)
            if step is None:
                continue
            begin, end = self._span(call)
            index = bucket.get(id(call))
            rows.append(
                SeenCall(
                    step, seq, call.op, call.algorithm, list(call.ranks), call.dtype, call.bytes, made, begin,
                    None if begin is None or end is None else end - begin, index, last_before(ready, index, made),
                )
            )  # fmt: skip
        waits = [(seconds(begin), seconds(end)) for begin, end in self.recorder.waits]
        waits += self._unseen_waits(taken, begins)
        steps = [(step_of(begin, begins), begin, end) for begin, end in sorted(waits)]
        report.calls += rows
        report.stalls += [(step, begin, end) for step, begin, end in steps if step is not None]
        report.facts |= self._buckets.facts() if self._buckets else {}

    def _span(self, call: Call) -> tuple[float | None, float | None]:
        """Return the start and the end of a call; None if unknown."""
        # The end of a call without a future is unknown if it ended before the wait for it.
        seconds, measured = self._moments.seconds, call.measured_s
        begin = None if call.begin is None else seconds(call.begin)
        end = None if call.end is None else seconds(call.end)
        if call.awaited is not None and end is not None and end - seconds(call.awaited) < BLOCKED_S:
            return begin, begin + measured if begin is not None and measured is not None else None
        if measured is not None and end is not None:
            begin = end - measured
        return begin, end

    def _unseen_waits(self, taken: Sequence[Call], begins: Sequence[float]) -> list[tuple[float, float]]:
        """Return (start, end) of waits for futures in C++.

        DDP waits for all buckets of a backward pass after it has called the last one. If the buckets are unknown, a
        step counts as one pass.
        """
        seconds = self._moments.seconds
        if self._buckets and self._buckets.bytes:
            passes = [i // len(self._buckets.bytes) for i in range(len(taken))]
        else:
            passes = [step_of(seconds(call.made), begins) or 0 for call in taken]
        waits = []
        for number in sorted(set(passes)):
            reduced = [call for call, of in zip(taken, passes, strict=True) if of == number]
            ends = [seconds(call.end) for call in reduced if call.end is not None]
            handed = reduced[-1].handed
            if ends and handed is not None and max(ends) > seconds(handed):
                waits.append((seconds(handed), max(ends)))
        return waits


class SynchronizedClock(AroundClock):
    """Let the host wait for the device at the end of each step."""

    def __init__(self, clock: StepMarker, moments: Moments, width: int = MARKS) -> None:
        super().__init__(clock, width)
        self._moments = moments

    def marked(self, at: int, *, exists: bool) -> None:
        if at == self._width - 1:
            self._moments.synchronize()
