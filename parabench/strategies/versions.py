"""The parameters of an asynchronous server: every gradient is applied when it comes, and a ledger says which were."""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple

from torch import Tensor, nn

from parabench.strategies.optimizer import adamw


class Applied(NamedTuple):
    """One update: the gradient of `rank`'s `step`, which `staleness` updates of others had overtaken."""

    rank: int
    step: int
    staleness: int


class ParameterVersions:
    """Parameters in host memory, one flat tensor, that go from version to version: one optimizer step a gradient.

    Every rank begins with version 0. `applied` lists what reached the parameters, in order; it is written by a hook
    of the optimizer itself, so a gradient that was lost on the way is not in it, and one applied twice is twice.
    """

    def __init__(self, values: Tensor, ranks: int, *, fused: bool) -> None:
        self.values = nn.Parameter(values.clone())
        self.optimizer = adamw([self.values], fused=fused)
        self.optimizer.register_step_post_hook(lambda *_: self._note())
        self.applied: list[Applied] = []
        self._read = [0] * ranks
        self._now = (0, 0)
        self._lock = Lock()

    @property
    def version(self) -> int:
        return len(self.applied)

    def apply(self, rank: int, step: int, gradient: Tensor, into: Tensor) -> int:
        """Update with the gradient that `rank` computed in its `step`, then copy the newest parameters `into` a tensor,
        which may be the gradient's own memory; returns their version. Safe to call from several threads."""
        with self._lock:
            self._now = (rank, step)
            self.values.grad = gradient
            self.optimizer.step()
            self.values.grad = None
            into.copy_(self.values.detach())
            self._read[rank] = self.version
            return self.version

    def _note(self) -> None:
        rank, step = self._now
        self.applied.append(Applied(rank, step, self.version - self._read[rank]))

    def facts(self) -> dict[str, Any]:
        """The ledger: [rank, step, staleness] of every update, in the order in which they were made."""
        return {"applied": [list(each) for each in self.applied]}
