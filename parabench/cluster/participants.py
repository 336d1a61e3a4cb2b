"""The interface between a session and the nodes that take part in it. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from parabench.launch.spec import LaunchSpec
from parabench.store.record import AnyCase, Launch


class Participants:
    """A session on this machine alone. The coordinator of several nodes is a subclass.

    As a context manager, it lets all nodes end, even if its block fails.
    """

    # The options of the command that resumes the session.
    options: Sequence[str] = ()
    # Why the session ended early, and the command that resumes it; `None` if it did not.
    over: str | None = None
    # The recorded environment of each node.
    environments: Sequence[Mapping[str, Any]] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        """Wait for all nodes.

        Raises UsageError if one does not come, or has other user code for these cases, Interrupted if any is asked to
        stop.
        """

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        """Start the fork server, and return the function that launches on all nodes. Imports torch."""
        from parabench.launch.launcher import launch
        from parabench.launch.processes import start_launching

        start_launching()
        return launch

    def keeping(self, keep: Callable[[Launch], None], outcome: Callable[[Launch], str]) -> Callable[[Launch], None]:
        """Return `keep`, extended to send the `outcome` of a launch to all nodes."""
        return keep

    def end(self, code: int) -> None:
        """End the session on all nodes, with this exit code."""
