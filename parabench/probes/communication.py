"""Communication in the instrumented steps: calls of collectives with their start and end, and waits of the training.

`backend_calls` follows the calls of the backend, and groups report the calls of custom algorithms. gloo's sends and
receives do not have a future. Their end is known only if something waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from parabench.collectives import is_backends
from parabench.collectives.process_group import groups
from parabench.machine import accelerator
from parabench.machine.accelerator import Moment
from parabench.probes import CaseReport, Probe, ProbedRank
from parabench.probes.backend_calls import coalesced_calls, native_calls, stream_waits
from parabench.probes.ddp import Buckets, only_ddp
from parabench.probes.step_clock import MARKS, AroundClock, Moments, step_of
from parabench.store.record import MESSAGES, CollectiveSample, Phase
from parabench.strategies.base import StepMarker, stored_parts

# A wait for a message that has ended takes some 10 us. If a wait is longer, the message ended with the wait.
BLOCKED_S = 1e-4

# The longest wait for a due callback, after the last step.
SETTLE_S = 1.0

# Operations that divide the buffer into one part for each rank.
BY_PARTS = ("reduce_scatter", "gather", "scatter")


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """A call of a collective, and its timestamps; None if unknown."""

    recorder: Recorder
    op: str
    algorithm: str
    ranks: tuple[int, ...]
    bytes: int
    dtype: str | None
    on_stream: bool
    made: Moment
    handed: Moment | None = None  # when it returned to its caller
    begin: Moment | None = None
    end: Moment | None = None
    awaited: Moment | None = None  # the start of the wait for it, if it has no future
    taken: bool = False  # the caller has the future, so its waits are not observed
    measured_s: float | None = None  # the duration that NCCL measured

    def now(self) -> Moment:
        """Return the time on the clock of the call: the device's current stream, or the host."""
        return self.recorder.moments.now() if self.on_stream else perf_counter()

    def timed(self, job: Callable[[], None]) -> Callable[[], None]:
        """Return `job` with its start and end recorded."""

        def run() -> None:
            self.begin = self.now()
            job()
            self.end = self.now()

        return run

    @contextmanager
    def handing(self, *, waits: bool) -> Iterator[None]:
        """Return a context for starting the job. With `waits`, the caller is blocked until the job ends."""
        with self.waiting() if waits else contextlib.nullcontext():
            yield
        self.handed = self.recorder.moments.now()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context for a wait of the caller for the outcome."""
        if not self.recorder.computes_here():
            yield
            return
        begin = self.recorder.moments.now()
        yield
        self.recorder.waits.append((begin, self.recorder.moments.now()))

    def futured(self) -> None:
        """Record that the caller has taken the future."""
        self.taken = True


class Recorder:
    """Record the collective `calls` of a process, in order, and the `waits` of its training for them.

    The training computes on `device`. `native` is the name of the backend's algorithm.
    """

    def __init__(self, moments: Moments, device: torch.device, native: str) -> None:
        self.moments = moments
        self.calls: list[Call] = []
        self.waits: list[tuple[Moment, Moment]] = []
        self._native = native
        self._device = device
        self._thread = threading.get_ident()
        self.stream = accelerator.current_stream(device) if device.type == accelerator.TYPE else None
        self.together: list[Call] | None = None  # the calls of a batch of NCCL
        self._works: list[RecordedWork] = []
        self._ranks: dict[str, tuple[int, ...]] = {}

    def computes_here(self) -> bool:
        """Return whether waits of the caller block training: on its thread, or on its stream on CUDA."""
        if self.stream is not None:
            return bool(accelerator.current_stream(self._device) == self.stream)
        return threading.get_ident() == self._thread

    def called(
        self, op: str, group: Any, results: Iterable[Tensor], algorithm: str | None = None, *, on_stream: bool
    ) -> Call:
        """Record a call. `results` are the tensors that it finishes, or the inputs of a gather."""
        tensors, name = list(results), group.group_name
        if name not in self._ranks:
            self._ranks[name] = tuple(dist.get_process_group_ranks(group))
        parts = group.size() if op in BY_PARTS else 1
        call = Call(
            recorder=self,
            op=op,
            algorithm=algorithm or self._native,
            ranks=self._ranks[name],
            bytes=parts * sum(part.nbytes for tensor in tensors for part in stored_parts(tensor)),
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else None,
            on_stream=on_stream,
            made=self.moments.now() if on_stream else perf_counter(),
        )
        self.calls.append(call)
        return call

    def follow(
        self, op: str, group: Any, results: Iterable[Tensor], call: Callable[[], Any], *, waits: bool = False
    ) -> Any:
        """Make a call of the backend. Return its watched work, or None if the backend returned no work.

        NCCL returns no work for calls in a batch. With `waits`, it also returns none, and uses the caller's stream.
        """
        self.let_go()
        tensors = list(results)
        device = tensors[0].device if tensors else self._device
        watched = self.called(op, group, tensors, on_stream=is_nccl(group, device))
        watched.begin = watched.made
        with watched.handing(waits=waits and watched.on_stream):
            work = call()
        if self.together is not None:
            self.together.append(watched)
            return work
        if work is not None:
            return self._kept(RecordedWork(work, [watched]))
        if watched.on_stream:
            watched.end = watched.handed
        return None

    def follow_all(self, work: Any) -> Any:
        """Return the watched work of all calls in `together`, and end the batch."""
        calls, self.together = self.together or [], None
        if work is not None and calls:
            return self._kept(RecordedWork(work, calls, futured=False))
        for call in calls:
            call.end = self.moments.now()
        return work

    def let_go(self) -> None:
        """Drop works that have ended and were waited for, because a work holds its tensors."""
        with accelerator.current_on(self._device):
            self._works = [work for work in self._works if not work.let_go()]

    def settle(self) -> None:
        """Wait briefly for missing ends, and drop works that have ended."""
        for work in self._works:
            work.settle()
        self.let_go()

    def _kept(self, work: RecordedWork) -> RecordedWork:
        """Keep a work alive: c10d holds only its C++ part, and may call it until something waits for it."""
        self._works.append(work)
        return work


class RecordedWork(Work):
    """A work of the backend, for one call or a batch. It records the end of the calls, and the waits for them.

    Pass `futured=False` if the inner work has no future. Otherwise, c10d wraps a null pointer.
    """

    def __init__(self, inner: Any, calls: list[Call], *, futured: bool = True) -> None:
        super().__init__()
        self._inner, self._calls, self._call = inner, calls, calls[0]
        self._waited = False
        self._end: Any = None
        if futured:
            with contextlib.suppress(RuntimeError):  # gloo's sends and receives do not have one
                self._end = inner.get_future()
        if self._end is not None:
            # NCCL's future is available at once. Its callback runs on a stream after the kernels.
            self._end.add_done_callback(lambda _: self._ended())

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._inner is None:  # dropped after an earlier wait
            return True
        begin = perf_counter()
        on_stream = self._call.on_stream and self._end is None
        if on_stream and self._call.awaited is None:
            for call in self._calls:
                call.awaited = call.now()
        with self._call.waiting():
            over = bool(self._inner.wait(timeout) if timeout else self._inner.wait())
        # A collective has ended after a wait. A message of gloo may have ended before a short wait.
        if on_stream or self._call.op not in MESSAGES or perf_counter() - begin > BLOCKED_S:
            self._ended()
        self._waited = True
        return over

    def get_future(self) -> Any:
        if self._inner is None:
            over: Future[Any] = Future()
            over.set_result(None)
            return over
        for call in self._calls:
            call.futured()
        return self._inner.get_future() if self._end is None else self._end

    def let_go(self) -> bool:
        """Drop the inner work if it has ended and was waited for or taken. Return whether it is dropped."""
        if not (self._waited or self._call.taken):
            return False
        if self._call.on_stream:
            if not self._inner.is_completed():
                return False
            with contextlib.suppress(RuntimeError):  # NCCL did not measure
                for call in self._calls:
                    call.measured_s = float(self._inner._get_duration()) / 1e3
        elif self._end is not None and self._call.end is None:
            return False
        self._inner = self._end = None
        return True

    def is_completed(self) -> bool:
        return self._inner is None or bool(self._inner.is_completed())

    def is_success(self) -> bool:
        return self._inner is None or bool(self._inner.is_success())

    def exception(self) -> Any:
        return None if self._inner is None else self._inner.exception()

    def result(self) -> Any:
        return [] if self._inner is None else self._inner.result()

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())

    def synchronize(self) -> None:
        if self._inner is not None:
            self._inner.synchronize()

    def settle(self) -> None:
        """Wait until the future's callback has recorded the end. The callback needs the interpreter's lock."""
        patience = perf_counter() + SETTLE_S
        while self._end is not None and self._call.end is None and perf_counter() < patience:
            sleep(0)

    def _ended(self) -> None:
        if self._call.end is not None:
            return
        for call in self._calls:
            call.end = call.now()


def is_nccl(group: Any, device: torch.device) -> bool:
    """Return whether `group` uses NCCL on `device`."""
    if device.type != accelerator.TYPE:
        return False
    try:
        return "nccl" in group._get_backend(device).name().lower()
    except RuntimeError:  # the group does not have a backend for this device
        return False


def enable_nccl_timing(device: torch.device) -> None:
    """Let NCCL's works measure their duration (`Work._get_duration`).

    c10d cannot disable this again, so call it only after the last measured step.
    """
    for group in dist.distributed_c10d._world.pg_map:
        if is_nccl(group, device):
            group._enable_collectives_timing()  # type: ignore[attr-defined]


class CommunicationProbe(Probe):
    """Record collective calls, the waits for them, and DDP's buckets."""

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
            last_gradient = max((at for of, at in ready if of == index and at <= made), default=None)
            rows.append(
                CollectiveSample(
                    self.rank.info.rank, step, seq, call.op, call.algorithm, len(call.ranks), call.bytes, begin,
                    None if begin is None or end is None else end - begin, Phase.INSTRUMENT, None, None,
                    ranks_text(call.ranks), call.dtype, made, index, last_gradient,
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
        """Return (start, end) of the waits for futures, which DDP's C++ code makes.

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


def ranks_text(ranks: Sequence[int]) -> str:
    """Return the ranks of a group as text: `0-3` if they are consecutive, else `0,2`."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


class SynchronizedClock(AroundClock):
    """Let the host wait for the device at the end of each step."""

    def __init__(self, clock: StepMarker, moments: Moments, width: int = MARKS) -> None:
        super().__init__(clock, width)
        self._moments = moments

    def marked(self, at: int, *, exists: bool) -> None:
        if at == self._width - 1:
            self._moments.synchronize()
