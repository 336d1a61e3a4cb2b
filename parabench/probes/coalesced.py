"""Calls that NCCL makes together: `batch_isend_irecv`, and whatever else stands in c10d's coalescing manager.

Between its start and its end a call returns no work; the end returns one for all. That work has no future, so its end
is known only where somebody waits for it.
"""

from __future__ import annotations

from typing import Any

from torch.distributed import ProcessGroup

from parabench.probes.collective_calls import Recorder


class CoalescedCalls:
    """While its block runs, `recorder` knows which calls are made together, and follows their common work."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> CoalescedCalls:
        recorder, start, end = self._recorder, ProcessGroup._start_coalescing, ProcessGroup._end_coalescing

        def started(group: Any, *arguments: Any) -> None:
            recorder.together = []
            start(group, *arguments)

        def ended(group: Any, *arguments: Any) -> Any:
            return recorder.follow_all(end(group, *arguments))

        self._own = start, end
        ProcessGroup._start_coalescing = started  # type: ignore[method-assign,assignment]
        ProcessGroup._end_coalescing = ended  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *exc: object) -> None:
        ProcessGroup._start_coalescing, ProcessGroup._end_coalescing = self._own  # type: ignore[method-assign]
