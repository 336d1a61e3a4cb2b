"""Graphs that torch.compile makes of a case, and frames that it gives up and leaves to eager mode.

torch counts both for the whole process (`torch._dynamo.utils.counters`), so the cases of a shared launch are told apart
by the steps in which they take their turns.
"""

from __future__ import annotations

from types import TracebackType


class CompileCounts:
    """Count what torch.compile does while a `with` block of this object runs, over all such blocks.

    A frame that torch.compile gives up, because it exceeds `recompile_limit` or cannot be traced, is counted once and
    runs in eager mode from then on.
    """

    def __init__(self) -> None:
        self.graphs = self.eager_frames = 0
        self._before = (0, 0)

    def __enter__(self) -> None:
        self._before = _counted()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
