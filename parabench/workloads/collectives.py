"""The collectives microbenchmark: each rank checks against exact values, times every call, and checks again. Cases that
share a launch take turns (`collective_turns`); there are as many ranks as the largest has, a smaller one lives in
the first of them, and the others wait."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

from parabench.collectives import is_backends, join
from parabench.collectives.algorithm import make
from parabench.collectives.wire import PIECE_BYTES
from parabench.launch.outcome import failed_at
from parabench.launch.rank import device_of, join_group, loaded_nccl
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload, handed_over, shares_of
from parabench.machine import accelerator
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.plan.collective_protocol import LATENCY
from parabench.store.record import CollectiveSample, Failure, Launch, Status
from parabench.workloads.collective_buffers import Buffers, buffers
from parabench.workloads.collective_turns import Row, Stage, rows, stages
from parabench.workloads.timing import MARKS, Bench


class WrongCount(NamedTuple):
    """How many elements a rank found wrong at a size and form."""

    bytes: int
    in_place: bool
    elements: int


class CaseReport(NamedTuple):
    """What was checked of a case, and how it ran."""

    wrong: list[WrongCount]
    facts: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class CollectivesReport(RankReport):
    """What a rank tells of each of its cases, in the order of the launch's; None of one that it has no part in."""

    arms: list[CaseReport | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        # JSON has lists of them.
        self.arms = [each and CaseReport([WrongCount(*count) for count in each[0]], each[1]) for each in self.arms]

    def of(self, place: int) -> CaseReport:
        """Of the case at `place`; nothing where the rank did not come to its end."""
        return (self.arms[place] if self.arms else None) or CaseReport([], {})


class CollectivesWorkload(Workload):
    """Operations at every size; its ranks mark of each reading when it began, how many seconds it took, and of how many
    calls."""

    report_type = CollectivesReport

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        table = list(rows(spec.protocol, cases_of(spec)))
        what = "call" if spec.protocol.mode == LATENCY else "batch of calls"

        def position(numbers: int) -> str:
            at = numbers // MARKS
            if at >= len(table):
                return "to the end of its calls"
            place, slot = table[at]
            of = f" of {spec.cases[place].label}" if spec.protocol.takes_turns else ""
            if slot is None:
                return f"to a check{of}"
            return f"to {size_text(slot.bytes)} {_form(slot.in_place)}, {slot.phase} {what} {slot.iteration}{of}"

        return MarkLayout(columns=MARKS, moments=1, rows=len(table), position=position)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> CollectivesReport:
        cases = cases_of(spec)
        largest = max(cases, key=lambda case: case.world_size)
        torch.set_num_threads(largest.threads)
        device = device_of(largest)
        shared: bool = spec.protocol.takes_turns
        clock = join_group(largest.replace(algorithm="native") if shared else largest, env, rank)
        groups = join.WorldGroups(largest.backend, env.timeout_s) if shared else None
        report = time_all(spec, rank, device, groups, self.marks(spec).make(env.folder, rank))
        gc.collect()
        join.leave()
        report.clock = clock
        return report

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """The rows of a case that has the launch to itself; else a launch of each, and of one that failed only of the
        case whose turn it was, where that is known."""
        reports, marks = zip(*handed_over(nodes, CollectivesReport), strict=True)
        cases, table = cases_of(spec), list(rows(spec.protocol, cases_of(spec)))
        if not spec.protocol.takes_turns:
            _add(launch, spec, 0, table, reports, marks)
            return
        ended = range(len(cases))
        if launch.status is not Status.OK:
            culprit = culprit_of(launch, marks, table, cases)
            ended = range(0) if culprit is None else range(culprit, culprit + 1)
        shared = {"cases": [case.id for case in cases], "rounds": spec.protocol.rounds}
        for place, arm in shares_of(launch, cases, ended):
            arm.facts["turns"] = {**shared, "place": place}
            _add(arm, spec, place, table, reports, marks)
            launch.arms.append(arm)


def cases_of(spec: LaunchSpec) -> tuple[CollectiveCase, ...]:
    """The cases of a launch of this kind."""
    return tuple(cast(CollectiveCase, each) for each in spec.cases)


def culprit_of(
    launch: Launch, marks: Sequence[Marks], table: Sequence[Row], cases: Sequence[CollectiveCase]
) -> int | None:
    """The place of the case whose turn it was when a launch failed, on the rank that `failed_at` tells. None before the
    first and after the last turn, and in one that the rank has no part in."""
    rank, came = failed_at(launch.failure, marks)
    at = came // MARKS
    if not came or at >= len(table) or rank >= cases[table[at].place].world_size:
        return None
    return table[at].place


def _add(
    launch: Launch,
    spec: LaunchSpec,
    place: int,
    table: Sequence[Row],
    reports: Sequence[CollectivesReport],
    marks: Sequence[Marks],
) -> None:
    """Add to a launch what was seen of the case at `place`, and whether its results are wrong."""
    case = cases_of(spec)[place]
    own = [at for at, row in enumerate(table) if row.place == place and row.slot is not None]
    told = [report.of(place) for report in reports[: case.world_size]]
    launch.facts |= next((each.facts for each in told if each.facts), {})
    ran = launch.facts.get("algorithm", case.algorithm)
    for report, seen, numbers in zip(reports, told, marks, strict=False):
        launch.collectives += _samples(case, spec, numbers[own], report.rank, seen, ran)
    if launch.status is Status.OK and (failure := _wrong(told)) is not None:
        launch.status, launch.failure = Status.WRONG, failure


def _samples(
    case: CollectiveCase, spec: LaunchSpec, marks: Marks, rank: int, seen: CaseReport, ran: str
) -> Iterator[CollectiveSample]:
    """One rank's rows, as far as it came; `ran` is the algorithm that really did."""
    wrong = {(size, in_place): count for size, in_place, count in seen.wrong}
    for seq, (slot, (start, duration, calls)) in enumerate(zip(spec.protocol.schedule(case), marks, strict=True)):
        if math.isnan(duration):
            break
        yield CollectiveSample(
            rank=rank,
            step=slot.iteration,
            seq=seq,
            op=case.op,
            algorithm=ran,
            group_size=case.world_size,
            bytes=slot.bytes,
            start_s=float(start),
            duration_s=float(duration / calls),
            phase=slot.phase,
            in_place=slot.in_place,
            n_wrong=wrong.get((slot.bytes, slot.in_place)),
            calls=int(calls),
        )


def _wrong(ranks: Sequence[CaseReport]) -> Failure | None:
    """The first rank that found wrong elements, with how many there are in all; None when all are right."""
    total: dict[tuple[int, bool], int] = {}
    first = None
    for rank, each in enumerate(ranks):
        for size, in_place, count in each.wrong:
            if count:
                first = rank if first is None else first
                total[size, in_place] = total.get((size, in_place), 0) + count
    if not total:
        return None
    counts = "; ".join(
        f"{count} at {size_text(size)} {_form(in_place)}" for (size, in_place), count in sorted(total.items())
    )
    return Failure(f"wrong elements, summed over ranks: {counts}", rank=first)


def _form(in_place: bool) -> str:
    return "in place" if in_place else "out of place"


def time_all(
    spec: LaunchSpec, rank: int, device: torch.device, groups: join.WorldGroups | None, marks: Marks
) -> CollectivesReport:
    """Every size and form in turn; `marks` gets what `rows` says. In `groups` the cases find theirs; None: there is one
    case, whose group is the one that was joined."""
    part = RankPart(spec, rank, device, groups, marks)
    if groups:
        part.next_rows(1)[:] = 0
    wrong: list[list[WrongCount]] = [[] for _ in spec.cases]
    for stage in stages(spec.protocol, part.cases):
        for place, count in part.run(stage).items():
            wrong[place].append(count)
    report = CollectivesReport(rank=rank, facts={"piece_bytes": PIECE_BYTES, **loaded_nccl(spec.cases[0])})
    for place, case in enumerate(part.cases):
        report.arms.append(CaseReport(wrong[place], _ran(case)) if part.begin_turn(place) else None)
    if groups:
        groups.close()
    return report


class RankPart:
    """A rank's part in a launch: the cases and their groups, and the rows of its marks, which are filled one after the
    other."""

    def __init__(
        self, spec: LaunchSpec, rank: int, device: torch.device, groups: join.WorldGroups | None, marks: Marks
    ) -> None:
        self.cases = cases_of(spec)
        self._rank, self._device, self._groups, self._marks = rank, device, groups, marks
        self._bench = Bench(spec.protocol, self.cases[0].backend, device, rank)
        self._at = 0

    def next_rows(self, count: int) -> Marks:
        """The rows of what comes next."""
        self._at += count
        return self._marks[self._at - count : self._at]

    def begin_turn(self, place: int) -> bool:
        """Wait until nobody is in another case's turn, or their devices, and make the group of the case at `place` the
        default one; whether this rank has a part in it. Those without one wait for the next turn asleep."""
        case = self.cases[place]
        if self._groups is None:
            return True
        accelerator.synchronize(self._device)
        self._groups.barrier()
        if self._rank >= case.world_size:
            return False
        self._groups.use(place, ranks=case.world_size, algorithm=case.algorithm, ranks_per_node=case.ranks_per_node)
        return True

    def run(self, stage: Stage) -> dict[int, WrongCount]:
        """Check, time in turns, and check again; what was wrong, by the case's place."""
        # Averages of NCCL's are checked with other values: those have buffers of their own.
        shared: dict[tuple[int, float], Buffers] = {}
        here: dict[int, Buffers] = {}
        found: dict[int, int] = {}
        take: dict[int, Callable[[Marks], None]] = {}
        with ExitStack() as stack:
            for place in stage.places:
                case, takes_part = self.cases[place], self.begin_turn(place)
                first = self.next_rows(stage.warmup)
                if not takes_part:
                    # It has come further than those it waits for.
                    first[:] = 0
                    continue
                values = case.largest_value(), case.relative_error()
                if values not in shared:
                    shared[values] = buffers(case, stage.bytes, stage.in_place, self._rank, self._device)
                here[place] = shared[values]
                found[place] = here[place].wrong()
                # From call to call a reduction in place goes on with its own result, as in nccl-tests: the values grow,
                # and the time does not depend on them.
                timing = self._bench.warmed_up(here[place].call, first, in_turns=len(stage.places) > 1)
                take[place] = stack.enter_context(timing)
            for place, readings in stage.turns:
                takes_part, timed = self.begin_turn(place), self.next_rows(readings)
                if takes_part:
                    take[place](timed)
                else:
                    timed[:] = 0
        counts = {}
        for place in stage.places:
            if self.begin_turn(place):
                # The worse of the two checks: what is wrong always is not counted twice.
                worse = max(found[place], here[place].wrong())
                counts[place] = WrongCount(stage.bytes, stage.in_place, worse)
            if self._groups:
                self.next_rows(1)[:] = 0
        return counts


def _ran(case: CollectiveCase) -> dict[str, Any]:
    """How the case ran, by what its group, the default one, counted: `collectives`, and the `algorithm` that really
    ran, a user's own by the case's spelling of it, whatever it calls itself."""
    calls = join.calls(join.default_group())
    own = {case.op: calls[case.op]} if case.op in calls else {}
    ran: str = own.get(case.op, {}).get("algorithm", case.algorithm)
    if not is_backends(case.algorithm):
        algorithm = make(case.algorithm, case.ranks_per_node)
        left_out = case.op == "broadcast" and algorithm.broadcast is None
        ran = case.algorithm if ran == algorithm.name and not left_out else ran
    return {"algorithm": ran, "collectives": own}
