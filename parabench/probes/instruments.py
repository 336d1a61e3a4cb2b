"""The instruments of the steps after the timed ones: on for a few steps, then off, then read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parabench.collectives import is_backends
from parabench.collectives.process_group import groups
from parabench.plan.case import Case
from parabench.probes.backend_calls import CoalescedCalls, NativeCalls, StreamWaits
from parabench.probes.collective_calls import BLOCKED_S, Call, Recorder, enable_nccl_timing
from parabench.probes.ddp import Buckets, DdpLogger, last_before
from parabench.probes.step_clock import Moments, step_of
from parabench.store.record import SeenCall
from parabench.strategies.base import ParallelModel


class Instruments:
    """On while its block runs; `read` afterwards, once the device has been waited for."""

    def __init__(self, case: Case, parallel: ParallelModel, device: torch.device, moments: Moments) -> None:
        self._moments = moments
        self._device = device
        # Under an own algorithm the backend still does what that has not.
        native = case.algorithm if is_backends(case.algorithm) else "native"
        self._recorder = Recorder(moments, device, native)
        replicas = [module for module in parallel.module.modules() if isinstance(module, DistributedDataParallel)]
        # Of several, nobody can tell whose bucket a call reduces.
        self._ddp = replicas[0] if len(replicas) == 1 else None
        self._buckets: Buckets | None = None
        self._logger: DdpLogger | None = None
        self._on = ExitStack()

    def __enter__(self) -> Instruments:
        if self._device.type == "cuda":
            self._on.enter_context(StreamWaits(self._recorder))
        if dist.is_initialized():
            enable_nccl_timing(self._device)
            self._on.enter_context(CoalescedCalls(self._recorder))
            self._on.enter_context(NativeCalls(self._recorder, self._device.type))
            for group in groups:
                group.observer = self._recorder
                self._on.callback(setattr, group, "observer", None)
        if self._ddp is not None:
            self._buckets = Buckets(self._ddp, self._moments)
            self._on.callback(self._buckets.stop)
            self._logger = DdpLogger(self._ddp, self._moments)
            self._on.callback(self._logger.stop)
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            self._recorder.settle()
        self._on.close()

    def read(self, begins: Sequence[float]) -> dict[str, Any]:
        """What a rank hands over: {"collectives": rows, "waits": rows, "facts": ..., "told": ...}, seconds on the
        shared clock. "told" is what DDP told of itself.

        `begins` are the beginnings of all steps, and the end of the last. A row of "collectives" is a SeenCall, one of
        "waits" step, begin, end.
        """
        self._moments.synchronize()
        self._recorder.let_go()
        seconds = self._moments.seconds
        taken = [call for call in self._recorder.calls if call.taken]
        bucket = self._bucket_of(taken)
        ready = self._buckets.ready_s() if self._buckets else []
        rows = []
        for seq, call in enumerate(self._recorder.calls):
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
        waits = [(seconds(begin), seconds(end)) for begin, end in self._recorder.waits]
        waits += self._unseen_waits(taken, begins)
        steps = [(step_of(begin, begins), begin, end) for begin, end in sorted(waits)]
        return {
            "collectives": rows,
            "waits": [row for row in steps if row[0] is not None],
            "facts": self._buckets.facts() if self._buckets else {},
            "told": {"ddp_logger": logged} if self._logger and (logged := self._logger.told(begins)) else {},
        }

    def _bucket_of(self, taken: Sequence[Call]) -> dict[int, int]:
        """The bucket that each call reduced, by the call's identity."""
        if self._buckets is None:
            return {}
        reduced = [call for call in taken if call.op == "all_reduce"]
        found = {id(call): self._buckets.index_of(at, call.bytes) for at, call in enumerate(reduced)}
        return {key: index for key, index in found.items() if index is not None}

    def _span(self, call: Call) -> tuple[float | None, float | None]:
        """When it began and ended. A backend that measures its own kernels knows the begin better than the caller.

        What was over before anybody waited for it, and has no future, ended at an unknown moment: it is put where it
        was called.
        """
        begin = None if call.begin is None else self._moments.seconds(call.begin)
        end = None if call.end is None else self._moments.seconds(call.end)
        measured = call.measured_s
        if call.awaited is not None and end is not None and end - self._moments.seconds(call.awaited) < BLOCKED_S:
            return begin, begin + measured if begin is not None and measured is not None else None
        if measured is not None and end is not None:
            begin = end - measured
        return begin, end

    def _unseen_waits(self, taken: Sequence[Call], begins: Sequence[float]) -> list[tuple[float, float]]:
        """When training stood still for futures: DDP, in C++, waits for all buckets of a backward pass as soon as the
        last is handed over. Where the buckets are not known, a step counts as one pass."""
        if self._buckets and self._buckets.bytes:
            passes = [i // len(self._buckets.bytes) for i in range(len(taken))]
        else:
            passes = [step_of(self._moments.seconds(call.made), begins) or 0 for call in taken]
        waits = []
        for number in sorted(set(passes)):
            reduced = [call for call, of in zip(taken, passes, strict=True) if of == number]
            ends = [self._moments.seconds(call.end) for call in reduced if call.end is not None]
            handed = reduced[-1].handed
            if ends and handed is not None and max(ends) > self._moments.seconds(handed):
                waits.append((self._moments.seconds(handed), max(ends)))
        return waits
