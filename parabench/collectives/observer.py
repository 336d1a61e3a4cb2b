"""What an instrument that watches collectives must offer; `probes.collective_calls.Recorder` is the real one.

Groups carry none while steps are timed: then every call pays one comparison with None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor


class Watch(Protocol):
    """One call that is being watched."""

    def timed(self, job: Callable[[], None]) -> Callable[[], None]:
        """`job`, which notes when it begins and ends."""

    def handing(self, *, waits: bool) -> AbstractContextManager[None]:
        """Around handing the job over; with `waits` the caller stands still meanwhile."""

    def waiting(self) -> AbstractContextManager[None]:
        """Around a caller's waiting for the outcome."""

    def futured(self) -> None:
        """The caller has taken the future: where it waits for it is not seen."""


class Observer(Protocol):
    """Watches the calls of a process' groups."""

    def called(
        self, op: str, group: Any, results: Iterable[Tensor], algorithm: str | None = None, *, on_stream: bool
    ) -> Watch:
        """A call begins. `results` are the tensors that it finishes; `algorithm` is None where the backend does it;
        `on_stream` says that the job is kernels on the stream that is current then."""

    def follow(
        self, op: str, group: Any, results: Iterable[Tensor], call: Callable[[], Any], *, waits: bool = False
    ) -> Any:
        """Make a call that the backend does, and return its work, watched; with `waits` its caller waits for it."""
