"""torch.compile of a case's blocks: how they are compiled, and counts of what became of them.

torch caches graphs by code object, up to `torch._dynamo.config.recompile_limit` of them. Its guards look neither at the
case nor at DDP's buckets, at whose edges it splits graphs (`optimize_ddp`). So each case compiles copies of its blocks'
code: cases of one process share neither graphs nor the limit, as if each had a process to itself.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

# Inductor's own limit for a process.
MOST_COMPILE_THREADS = 32


def compile_blocks(blocks: Sequence[nn.Module]) -> None:
    """Compile the forward of each block for static shapes. Blocks with the same forward share one copy of its code."""
    share_compile_threads()
    copies: dict[Callable[..., Any], Callable[..., Any]] = {}
    for block in blocks:
        forward = block.forward
        if isinstance(forward, types.MethodType) and isinstance(forward.__func__, types.FunctionType):
            function = forward.__func__
            if function not in copies:
                copies[function] = copied(function)
            forward = types.MethodType(copies[function], block)
        block.forward = torch.compile(forward, dynamic=False)


def copied(function: types.FunctionType) -> types.FunctionType:
    """Return an equal function with a separate code object."""
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy


def share_compile_threads() -> None:
    """Limit the compile workers of all ranks of a node to its number of cores, unless the user has set a number.

    By default, Inductor starts up to 32 for each rank (torch/_inductor/config.py, decide_compile_threads).
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return
    from torch._inductor import config

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    config.compile_threads = max(1, min(MOST_COMPILE_THREADS, len(os.sched_getaffinity(0)) // ranks))


class CompileCounts:
    """Count what torch.compile does while a `with` block of this object runs, over all such blocks.

    torch counts for the whole process (`torch._dynamo.utils.counters`), so the steps of each case run in blocks of its
    counts. torch.compile gives up a frame that exceeds `recompile_limit` or cannot be traced. Such a frame is counted
    once, and runs in eager mode from then on.
    """

    def __init__(self) -> None:
        self.graphs = self.eager_frames = 0
        self._before = (0, 0)

    def __enter__(self) -> None:
        self._before = _counted()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        graphs, eager_frames = _counted()
        self.graphs += graphs - self._before[0]
        self.eager_frames += eager_frames - self._before[1]

    def facts(self) -> dict[str, int]:
        """Return both counts by name."""
        return {"graphs": self.graphs, "eager_frames": self.eager_frames}


def _counted() -> tuple[int, int]:
    """Return how many graphs this process has compiled so far, and how many frames it has left to eager mode."""
    from torch._dynamo.utils import counters

    frames = counters["frames"]
    return counters["stats"]["unique_graphs"], frames["total"] - frames["ok"]
