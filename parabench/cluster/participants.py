"""Who takes part in a session beside the process that keeps it. Free of torch.

Here that is nobody; the coordinators of several nodes, and of a group of processes that is there, are the other two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from parabench.launch.spec import LaunchSpec
from parabench.store.record import AnyCase, Launch
from parabench.store.store import Store


class Participants:
    """Nobody else: every launch starts its own processes here. As a context it leaves nobody waiting for this process,
    however the block fails."""

    # Whether launches share the processes of a group that is there.
    attached = False
    # What the command that resumes the session says of them; `go_on` is that command where it is another one.
    options: Sequence[str] = ()
    go_on: str | None = None
    # Why the session ended before its time, and how it goes on; None where it did not.
    over: str | None = None
    # What is recorded of each node, and of this machine where several processes tell of it.
    environments: Sequence[Mapping[str, Any]] = ()
    about: Mapping[str, Any] | None = None

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

    def begun(self, store: Store, session_id: int) -> None:
        """The session is in the store, new or resumed."""

    def check(self, launch: Launch) -> None:
        """After each launch: raise NodeGone or Interrupted where there can be no other."""

    def end(self, code: int) -> None:
        """The session is over, with that exit code."""
