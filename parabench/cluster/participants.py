"""Who takes part in a session beside the process that keeps it. Free of torch.

Here that is nobody; the coordinator of several nodes is the other kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from parabench.launch.spec import LaunchSpec
from parabench.store.record import AnyCase, Launch


class Participants:
    """Nobody else: every launch starts its own processes here. As a context it leaves nobody waiting for this process,
    however the block fails."""

    # The options of the command that resumes the session.
    options: Sequence[str] = ()
    # Why the session ended before its time, and how it goes on; None where it did not.
    over: str | None = None
    # The recorded environment of each node.
    environments: Sequence[Mapping[str, Any]] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        """Wait until all are there. Raises UsageError where the user's code that `cases` name is not the same."""

    def executor(self) -> Callable[[LaunchSpec], Launch]:
        """What launches on all of them, with its fork server started. It brings torch."""
        from parabench.launch.launcher import launch
        from parabench.launch.processes import start_launching

        start_launching()
        return launch

    def keeping(self, keep: Callable[[Launch], None], outcome: Callable[[Launch], str]) -> Callable[[Launch], None]:
        """`keep`, after which all are told how the launch ended, in the words of `outcome`."""
        return keep

    def end(self, code: int) -> None:
        """The session is over, with that exit code."""
