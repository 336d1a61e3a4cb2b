"""Time the calls of a collective on one rank: isolated, or back to back between two readings of the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from parabench.collectives import join
from parabench.machine import accelerator
from parabench.machine.accelerator import clock_of, elapsed_s
from parabench.plan.collective_protocol import (
    FEWEST_CALLS,
    FIRST_RUN_IN_S,
    LATENCY,
    RUN_IN_S,
    CollectiveProtocol,
    calls_in,
)

Rows = npt.NDArray[np.float64]
Call = Callable[[], object]

# A row of marks: the start of a batch on the host's clock, its seconds, and its number of calls.
MARKS = 3


class Bench:
    """Time calls by `protocol` on this rank's `device`, together with the other ranks of the default group."""

    def __init__(self, protocol: CollectiveProtocol, backend: str, device: torch.device, rank: int) -> None:
        self._protocol, self._backend, self._device, self._rank = protocol, backend, device, rank
        self._now = clock_of(device)
        # The sizes of groups whose devices have warmed up. A larger group has ranks that have not.
        self._ran_in: set[int] = set()

    @contextmanager
    def warmed_up(self, call: Call, rows: Rows, *, in_turns: bool = False) -> Iterator[Callable[[Rows], None]]:
        """Warm up, and fill `rows` with its times. Yield a function that makes the calls of a turn and fills its rows.

        If cases are interleaved (`in_turns`), each turn starts with calls that do not count.
        """
        if self._protocol.mode == LATENCY:
            self._isolated(call, rows)

            def turn(timed: Rows) -> None:
                if in_turns:
                    self._isolated(call, np.empty((1, MARKS)))
                self._isolated(call, timed)

            yield turn
            return
        (first,) = rows
        call_s = self._one_by_one(call, first)
        calls = self._protocol.calls_in_a_batch(call_s)
        run_in: int | None = self._run_in(call_s)

        with self._captured(call) as (start, each):

            def turn(timed: Rows) -> None:
                # The first batch does not count. After it, the host is ahead of the device, and ranks are in step. The
                # timed batches follow without a pause. In the first turn, the first batch has a row in `timed`.
                nonlocal run_in
                before = self._protocol.settling_calls(call_s) if run_in is None else run_in
                batches = [np.empty(MARKS), *timed] if run_in is None else list(timed)
                run_in = None
                self._together()
                counts = [-(-before // each), *[calls // each] * (len(batches) - 1)]
                self._batches(start, batches, *counts, of=each)

            yield turn

    def _isolated(self, call: Call, rows: Rows) -> None:
        """Make one call for each row, each after a barrier."""
        for row in rows:
            self._together()
            self._batches(call, [row], 1)

    def _one_by_one(self, call: Call, row: Rows) -> float:
        """Make calls, and wait for each. Return the seconds of one call, which is the same number on all ranks."""
        self._together()
        alone = np.empty((self._protocol.warmup, MARKS))
        self._batches(call, list(alone), *[1] * len(alone))
        row[:] = alone[0, 0], alone[:, 1].sum(), len(alone)
        return self._agreed(float(np.median(alone[:, 1])))  # the first may be slow, and others disturbed

    def _run_in(self, call_s: float) -> int:
        """Return the number of calls directly before the first turn. On a device, they raise its clocks."""
        if self._device.type != accelerator.TYPE:
            return self._protocol.warmup
        ranks = dist.get_world_size()
        seconds = RUN_IN_S if ranks in self._ran_in else FIRST_RUN_IN_S
        self._ran_in.add(ranks)
        return max(self._protocol.warmup, calls_in(seconds, call_s))

    def _batches(self, call: Call, rows: Sequence[Rows], *counts: int, of: int = 1) -> None:
        """Make `counts` calls for each row, and read the clock before and after. A call counts as `of` calls."""
        # On a device, calls only start kernels, and readings are known after these ran. Adjacent events are compared,
        # so that no precision is lost.
        behind, seconds = self._device.type == accelerator.TYPE, 0.0
        began, readings = perf_counter(), [self._now()]

        def note(at: int) -> None:
            nonlocal seconds
            took = elapsed_s(readings[at], readings[at + 1])
            rows[at][:] = began + seconds, took, counts[at] * of
            seconds += took

        for at, count in enumerate(counts):
            for _ in range(count):
                call()
            readings.append(self._now())
            if not behind:
                note(at)
        if behind:
            accelerator.synchronize(self._device)
            for at in range(len(counts)):
                note(at)

    def _together(self) -> None:
        """Wait for all ranks and their devices."""
        join.barrier(self._backend, self._device)
        accelerator.synchronize(self._device)

    def _agreed(self, seconds: float) -> float:
        """Return rank 0's number on all ranks. The backend scatters it, because a measured algorithm may be wrong."""
        device = self._device if self._backend == accelerator.BACKEND else torch.device("cpu")
        mine = torch.tensor([seconds], dtype=torch.float64, device=device)
        dist.scatter(mine, [mine] * dist.get_world_size() if self._rank == 0 else None, src=0)
        return float(mine.item())

    @contextmanager
    def _captured(self, call: Call) -> Iterator[tuple[Call, int]]:
        """Yield a function that starts calls, and their number: `call` itself, or a CUDA graph of several calls.

        The capture restricts only this thread, because NCCL's watchdog queries events meanwhile. The graph must be
        released before its communicator.
        """
        if not self._protocol.graph:
            yield call, 1
            return
        graph = accelerator.api().CUDAGraph()
        with accelerator.api().graph(graph, capture_error_mode="thread_local"):
            for _ in range(FEWEST_CALLS):
                call()
        try:
            yield graph.replay, FEWEST_CALLS
        finally:
            accelerator.synchronize(self._device)
            graph.reset()
