"""Who takes part in a session beside the process that keeps it: nobody, other nodes, or (attached.py) a group of
processes that is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from parabench.plan.plan import Plan
from parabench.session.progress import outcome
from parabench.session.runner import Executor, executor_of
from parabench.store.record import Launch
from parabench.store.store import Store

if TYPE_CHECKING:  # it brings torch
    from parabench.cluster.coordinator import Coordinator


class OneMachine:
    """Nobody else: every launch starts its own processes here."""

    # Whether launches share the processes of a group that is there.
    attached = False
    # What the command that resumes the session says of them; `go_on` is that command where it is another one.
    options: Sequence[str] = ()
    go_on: str | None = None
    # What is recorded of each node, and of this machine where several processes tell of it.
    environments: Sequence[Mapping[str, Any]] = ()
    about: Mapping[str, Any] | None = None

    def leading(self) -> AbstractContextManager[Any]:
        """However the block ends, nobody waits for this process."""
        return nullcontext()

    def assemble(self, plan: Plan[Any, Any]) -> None:
        """Wait until all are there. Raises UsageError where the user's code that `plan` names is not the same."""

    def executor(self) -> Executor:
        """What launches on all of them."""
        return executor_of()

    def keeping(self, keep: Callable[[Launch], None]) -> Callable[[Launch], None]:
        """`keep`, after which all are told how the launch ended."""
        return keep

    def begun(self, store: Store, session_id: int) -> None:
        """The session is in the store, new or resumed."""

    def check(self, launch: Launch) -> None:
        """After each launch: raise NodeGone or Interrupted where there can be no other."""

    def end(self, code: int) -> None:
        """The session is over, with that exit code."""


class SeveralNodes(OneMachine):
    """Nodes of which this one is number 0."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.options = coordinator.topology.words

    def leading(self) -> AbstractContextManager[Any]:
        return self.coordinator

    def assemble(self, plan: Plan[Any, Any]) -> None:
        from parabench.cluster.fingerprint import user_code

        self.coordinator.assemble(user_code(plan.cases))
        self.environments = self.coordinator.environments()

    def executor(self) -> Executor:
        return executor_of(self.coordinator)

    def keeping(self, keep: Callable[[Launch], None]) -> Callable[[Launch], None]:
        return self.coordinator.keeping(keep, outcome)

    def end(self, code: int) -> None:
        self.coordinator.end(code)
