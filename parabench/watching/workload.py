"""The rows of a watched loop in the results database, from what its ranks sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, of_ranks
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload, shares_of
from parabench.plan.case import Case
from parabench.plan.protocol import Counts
from parabench.probes import CaseReport
from parabench.store.record import UNVERIFIED, Finding, Launch, Sample, Status
from parabench.watching.loop import WIDTH
from parabench.watching.schedule import Schedule
from parabench.workloads.training import record_ranks, samples, step_marks

# Among ranks whose mean step differs by no more than this share, others wait for the rank that computes least.
NEAR = 0.01

UNCOMPARED = Finding(
    UNVERIFIED,
    "Its losses were not compared: it is a training of your own, and only what parabench builds has a reference.",
    "Nothing is to be done.",
)


def thinned(steps: int, recorded: int) -> Finding:
    """Return the warning that only a sample of the steps of a long loop is recorded."""
    return Finding(
        "steps_sampled",
        f"The loop took {steps:,} steps; {recorded:,} of them are recorded: the first ones, instrumented ones, and a "
        "random sample of the others, the same on every rank.",
        "Nothing is to be done: step time and parts count all steps; other figures are estimates from the sample.",
    )


def switched_off(rank: int, instrument: str, why: str) -> Finding:
    """Return the warning that an instrument of a rank failed."""
    return Finding(
        "instrument_off",
        f"Rank {rank} switched off {instrument} after an error ({why}); the training and other instruments went on.",
        "Report the error with the model's class, the optimizer, and the versions of torch and parabench.",
    )


def only_warm_up(steps: int, first: int, tuning: bool) -> Finding:
    """Return the warning that no step of the loop counts."""
    what, taken = "warm-up and tuning" if tuning else "warm-up", f"{steps:,} step{'' if steps == 1 else 's'}"
    return Finding(
        "no_measured_step",
        f"The loop took {taken}, and the first {first} are {what}, so its step time is unknown.",
        "Take more steps, or give a smaller warmup: watch(..., warmup=2).",
    )


@dataclass(frozen=True, slots=True)
class WatchWorkload(Workload):
    """The steps of a loop that has run already. `of_caps` has the case of each bucket cap of a tuning."""

    schedule: Schedule
    of_caps: tuple[Case, ...] = ()

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        raise AssertionError("the loop has run already")

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        return step_marks(WIDTH, None)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        ranks = list(of_ranks(nodes))
        cases = {report.rank: report.of(0) for report, _ in ranks}
        steps = max(case.steps for case in cases.values())
        record_ranks(launch, ranks, self.schedule.phases(steps))
        add_later_waits(launch, cases)
        launch.findings.append(UNCOMPARED)
        launch.findings += [
            switched_off(rank, instrument, why)
            for rank, case in cases.items()
            for instrument, why in case.failures.items()
        ]
        loop = slowest_loop(cases)
        if loop is not None:
            launch.facts["loop"] = loop
        if launch.status is Status.OK and steps <= self.schedule.first_measured:
            tuning = self.schedule.tuning is not None
            launch.findings.append(only_warm_up(steps, self.schedule.first_measured, tuning))
        if launch.status is Status.OK and min(each.steps for each in cases.values()) >= self.schedule.first_measured:
            launch.arms += self._arms(launch, ranks)
        # All steps of the tuning are recorded, so its arms have no such warning.
        recorded = max(len(case.marked or ()) for case in cases.values())
        if recorded < steps:
            launch.findings.append(thinned(steps, recorded))

    def _arms(self, launch: Launch, ranks: Sequence[tuple[RankReport, Marks]]) -> Iterator[Launch]:
        """Yield a launch for each cap of a tuning; its steps are the first rows of marks."""
        if self.schedule.tuning is None:
            return
        shared = {"cases": [case.id for case in self.of_caps], "protocol": self.schedule.tuning.to_dict()}
        for place, arm in shares_of(launch, self.of_caps, range(len(self.of_caps))):
            rows, phases = self.schedule.of_cap(place)
            arm.facts = {"turns": {**shared, "place": place}, "counts": Counts(warmup=0, measured=len(rows)).to_dict()}
            arm.device_samples, arm.host_samples = [], []
            for report, marks in ranks:
                arm.samples += samples(marks[rows], report.rank, CaseReport(), phases)
            yield arm


def slowest_loop(cases: Mapping[int, CaseReport]) -> dict[str, Any] | None:
    """Return the account of the rank with the longest mean step, with its `rank`; `None` if no rank has one.

    Ranks that wait for one another have the same mean step. Of these, the rank with the shortest forward and backward
    is shown: the others wait for it there.
    """

    def mean(loop: Mapping[str, Any]) -> float:
        return float(sum(loop["seconds"].values()) / loop["steps"])

    def computing(loop: Mapping[str, Any]) -> float:
        computes = ("forward_s", "backward_s", "forward_backward_s")
        return float(sum(loop["seconds"].get(part, 0.0) for part in computes) / loop["steps"])

    loops = [{"rank": rank, **case.loop} for rank, case in cases.items() if case.loop is not None]
    longest = max(map(mean, loops), default=0.0)
    return min((loop for loop in loops if mean(loop) >= (1 - NEAR) * longest), key=computing, default=None)


def add_later_waits(launch: Launch, cases: Mapping[int, CaseReport]) -> None:
    """Count waits between the batches of one step as waits for data, not as computing."""
    waits = {(rank, step): waited for rank, case in cases.items() for step, waited in case.later_waits.items()}
    if not waits:
        return
    signs = {"data_s": 1.0, "forward_backward_s": -1.0}
    launch.samples = [
        Sample(each.rank, each.step, each.phase, each.metric, each.value + signs[each.metric] * waited)
        if each.metric in signs
        and each.value is not None
        and each.step is not None
        and (waited := waits.get((each.rank, each.step))) is not None
        else each
        for each in launch.samples
    ]
