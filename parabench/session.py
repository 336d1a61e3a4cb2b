"""One session: walk the plan's turns, verify each launch against one device, hand every launch on at once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol as Interface

from parabench.case import Case, Protocol
from parabench.models import MODELS
from parabench.plan import Plan, Turn
from parabench.record import REFERENCE_BLOCK, UNVERIFIED, Finding, Launch, Status
from parabench.verify import Reference, reference_of, verify

# A launch is hung after ten times the time that is expected of it, and never before a minute.
DEADLINE_FACTOR = 10.0
LEAST_DEADLINE_S = 60.0

REFERENCE_TRIES = 2

# What a core surely computes: the guess for the very first launch of a model, before anything is known.
SURE_FLOPS = 5e9


class LaunchFunction(Interface):
    """The process seam: `launcher.launch`, or a test's stand-in."""

    def __call__(self, case: Case, protocol: Protocol, *, deadline_s: float) -> Launch: ...  # noqa: D102


class Progress(Interface):
    """Who is told how the session goes on."""

    def launching(self, case: Case, block: int) -> None: ...  # noqa: D102
    def launched(self, launch: Launch) -> None: ...  # noqa: D102


def turns_left(plan: Plan, done: Collection[tuple[str, int]]) -> list[Turn]:
    """What is still to be launched, references not counted; `done` holds (case id, block)."""
    return [turn for turn in plan.turns() if (turn.case.id, turn.block) not in done]


@dataclass
class Session:
    """Runs a plan. `keep` stores a launch; a resumed session has `done` and `references` from before."""

    plan: Plan
    launch: LaunchFunction
    keep: Callable[[Launch], None]
    progress: Progress
    done: Collection[tuple[str, int]] = ()
    references: dict[str, Reference] = field(default_factory=dict)
    _failed_references: dict[str, int] = field(default_factory=dict)
    _wall_s: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Launch every turn that is left. Raises Interrupted when asked to stop; what is kept stays kept."""
        for turn in turns_left(self.plan, self.done):
            reference = self._reference(turn.case)
            launch = self._launch(turn.case, turn.block)
            launch.block, launch.position = turn.block, turn.position
            if reference is not None:
                verify(launch, reference)
            else:
                launch.findings.append(
                    Finding(
                        UNVERIFIED,
                        "The single-device reference did not run, so this launch's losses were not compared.",
                        "Make the model or the batch smaller, until one device can run it.",
                        turn.case.id,
                    )
                )
            self._finish(launch)

    def _reference(self, case: Case) -> Reference | None:
        """The single-device run of the same training: launched once a session, then reused."""
        single = case.reference()
        # What failed once may have been an accident: one more try, not one before every launch.
        tries = self._failed_references.get(single.id, 0)
        if self.references.get(single.id) is None and tries < REFERENCE_TRIES:
            launch = self._launch(single, REFERENCE_BLOCK)
            launch.block = REFERENCE_BLOCK
            self._finish(launch)
            if launch.status is Status.OK:
                self.references[single.id] = reference_of(launch)
            else:
                self._failed_references[single.id] = tries + 1
        return self.references.get(single.id)

    def _launch(self, case: Case, block: int) -> Launch:
        self.progress.launching(case, block)
        return self.launch(case, self.plan.protocol, deadline_s=self.deadline_s(case))

    def _finish(self, launch: Launch) -> None:
        if launch.status in (Status.OK, Status.WRONG):
            self._wall_s[launch.case.id] = launch.wall_s
        self.keep(launch)
        self.progress.launched(launch)

    def deadline_s(self, case: Case) -> float:
        """Ten times what this case took before, or what its reference took, or what its arithmetic must take."""
        if self.plan.protocol.deadline_s is not None:
            return self.plan.protocol.deadline_s
        expected = self._wall_s.get(case.id, self._wall_s.get(case.reference().id))
        if expected is None:
            shape = MODELS.get(case.model)
            steps = self.plan.protocol.warmup + self.plan.protocol.steps
            # 6 operations a parameter and token: Kaplan et al., "Scaling laws for neural language models", 2020.
            work = 6 * shape.parameters * case.global_batch * case.seq_len * steps if shape else 0
            expected = work / SURE_FLOPS
        return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * expected)
