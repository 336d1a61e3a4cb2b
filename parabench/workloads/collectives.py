"""The microbenchmark of collectives: each rank checks results, times calls, and checks again.

Cases that share a launch are interleaved (`plan.collective_protocol.stages`). A smaller case uses the first ranks, and
the others wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from parabench.collectives import is_backends, join
from parabench.collectives.algorithm import make
from parabench.collectives.wire import PIECE_BYTES
from parabench.launch.outcome import arms_of
from parabench.launch.rank import device_of, in_group, join_group, loaded_nccl
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, of_ranks
from parabench.launch.spec import LaunchSpec, RankEnv, Workload
from parabench.machine import accelerator
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.plan.collective_protocol import LATENCY, Slot, Stage, rows, stages
from parabench.probes import CaseReport
from parabench.store.record import CollectiveSample, Failure, Launch, Status
from parabench.workloads.collective_buffers import Buffers, buffers
from parabench.workloads.timing import MARKS, Bench


class CollectivesWorkload(Workload):
    """Measure an operation at every size. A row of marks is the start, seconds and number of calls of a reading."""

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        table = list(rows(spec.protocol, spec.cases))
        what = "call" if spec.protocol.mode == LATENCY else "batch of calls"

        def position(numbers: int) -> str:
            at = numbers // MARKS
            if at >= len(table):
                return "to the end of its calls"
            place, slot = table[at]
            label = spec.cases[place].label
            if slot is None:
                return f"to a check of {label}"
            form = _form(slot.in_place)
            return f"to {size_text(slot.bytes)} {form}, {slot.phase} {what} {slot.iteration} of {label}"

        return MarkLayout(columns=MARKS, moments=1, rows=len(table), position=position)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        largest: CollectiveCase = spec.largest
        torch.set_num_threads(largest.threads)
        device = device_of(largest)
        with in_group(partial(join_group, largest.replace(algorithm="native"), env, rank)) as clock:
            groups = join.WorldGroups(largest.backend, env.timeout_s)
            report = RankPart(spec, rank, device, groups, self.marks(spec).make(env.folder, rank)).report()
            groups.close()
        report.clock = clock
        return report

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """Add the readings of all ranks to a launch. If cases share it, add a launch for each case."""
        reports, marks = zip(*of_ranks(nodes), strict=True)
        table = list(rows(spec.protocol, spec.cases))
        arms: Iterable[tuple[int, Launch]] = [(0, launch)]
        if spec.protocol.takes_turns:
            arms = arms_of(launch, spec, marks, MARKS, [owner for owner, _ in table])
        shared = {"cases": [case.id for case in spec.cases], "rounds": spec.protocol.rounds}
        for place, arm in arms:
            case: CollectiveCase = spec.cases[place]
            slots = {at: slot for at, (owner, slot) in enumerate(table) if owner == place and slot is not None}
            cases = [report.of(place) for report in reports[: case.world_size]]
            arm.facts |= next((each.facts for each in cases if each.facts), {})
            ran = arm.facts.get("algorithm", case.algorithm)
            for rank, (report, numbers) in enumerate(zip(cases, marks, strict=False)):
                readings = zip(slots.values(), numbers[list(slots)], strict=True)
                arm.collectives += _samples(case, readings, rank, report, ran)
            wrong: Counter[tuple[int, bool]] = Counter()
            for size, in_place, count in (check for each in cases for check in each.wrong if check[2]):
                wrong[size, in_place] += count
            if arm.status is Status.OK and wrong:
                first = next(rank for rank, each in enumerate(cases) if any(count for *_, count in each.wrong))
                counts = [
                    f"{n} at {size_text(size)} {_form(in_place)}" for (size, in_place), n in sorted(wrong.items())
                ]
                arm.status = Status.WRONG
                arm.failure = Failure(f"wrong elements, summed over ranks: {'; '.join(counts)}", rank=first)
            if spec.protocol.takes_turns:
                arm.facts["turns"] = {**shared, "place": place}
                launch.arms.append(arm)


def _samples(
    case: CollectiveCase, readings: Iterable[tuple[Slot, Marks]], rank: int, report: CaseReport, ran: str
) -> Iterator[CollectiveSample]:
    """Yield a row for each reading of one rank, until the first missing one. `ran` is the algorithm that ran."""
    wrong = {(size, in_place): count for size, in_place, count in report.wrong}
    for seq, (slot, (start, duration, calls)) in enumerate(readings):
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


def _form(in_place: bool) -> str:
    return "in place" if in_place else "out of place"


class RankPart:
    """The measurements of one rank in a launch.

    It fills the rows of `marks` in the order of `plan.collective_protocol.rows`. `groups` has the group of each case.
    """

    def __init__(
        self, spec: LaunchSpec, rank: int, device: torch.device, groups: join.WorldGroups, marks: Marks
    ) -> None:
        self._spec, self._cases = spec, spec.cases
        self._rank, self._device, self._groups, self._marks = rank, device, groups, marks
        self._bench = Bench(spec.protocol, spec.cases[0].backend, device, rank)
        self._at = 0

    def report(self) -> RankReport:
        """Measure every stage. Return the results of the checks, and the algorithm that ran, for each case."""
        self._next_rows(1)[:] = 0
        wrong: list[list[tuple[int, bool, int]]] = [[] for _ in self._cases]
        for stage in stages(self._spec.protocol, self._cases):
            for place, count in self._run(stage).items():
                wrong[place].append((stage.bytes, stage.in_place, count))
        report = RankReport(rank=self._rank)
        for place, case in enumerate(self._cases):
            takes_part = self._begin_turn(place)
            facts = {"piece_bytes": PIECE_BYTES, **loaded_nccl(case)}
            report.cases.append(CaseReport(wrong=wrong[place], facts=facts | _ran(case)) if takes_part else None)
        return report

    def _next_rows(self, count: int) -> Marks:
        """Return the next `count` rows of marks."""
        self._at += count
        return self._marks[self._at - count : self._at]

    def _begin_turn(self, place: int) -> bool:
        """Wait for all ranks, and use the group of the case with index `place`. Return whether this rank takes part."""
        case: Any = self._cases[place]
        accelerator.synchronize(self._device)
        self._groups.barrier()
        if self._rank >= case.world_size:
            return False
        self._groups.use(place, ranks=case.world_size, algorithm=case.algorithm, ranks_per_node=case.ranks_per_node)
        return True

    def _run(self, stage: Stage) -> dict[int, int]:
        """Check a stage, time it in turns, and check it again. Return {index of a case: number of wrong elements}."""
        # Averages of NCCL's are checked with other values, so they have separate buffers.
        shared: dict[tuple[int, float], Buffers] = {}
        here: dict[int, Buffers] = {}
        found: dict[int, int] = {}
        take: dict[int, Callable[[Marks], None]] = {}
        with ExitStack() as stack:
            for place in stage.places:
                case: Any = self._cases[place]
                takes_part = self._begin_turn(place)
                first = self._next_rows(stage.warmup)
                if not takes_part:
                    # Mark them, so that this rank does not count as the slowest one.
                    first[:] = 0
                    continue
                values = case.largest_value(), case.relative_error()
                if values not in shared:
                    shared[values] = buffers(case, stage.bytes, stage.in_place, self._rank, self._device)
                here[place] = shared[values]
                found[place] = here[place].wrong()
                # Each call of a reduction in place reduces the previous result, as in nccl-tests. The values grow, and
                # the time does not depend on them.
                timing = self._bench.warmed_up(here[place].call, first, in_turns=len(stage.places) > 1)
                take[place] = stack.enter_context(timing)
            for place, readings in stage.turns:
                takes_part, timed = self._begin_turn(place), self._next_rows(readings)
                if takes_part:
                    take[place](timed)
                else:
                    timed[:] = 0
        for place in stage.places:
            if self._begin_turn(place):
                # The larger count, so that constant errors are not counted twice.
                found[place] = max(found[place], here[place].wrong())
            self._next_rows(1)[:] = 0
        return found


def _ran(case: CollectiveCase) -> dict[str, Any]:
    """Return {"algorithm", "collectives"}: the algorithm that ran, and the calls that the default group counted.

    A custom algorithm keeps the spelling of its name in the case.
    """
    calls = join.calls(join.default_group())
    own = {case.op: calls[case.op]} if case.op in calls else {}
    ran: str = own.get(case.op, {}).get("algorithm", case.algorithm)
    if not is_backends(case.algorithm):
        algorithm = make(case.algorithm, case.ranks_per_node)
        left_out = case.op == "broadcast" and algorithm.broadcast is None
        ran = case.algorithm if ran == algorithm.name and not left_out else ran
    return {"algorithm": ran, "collectives": own}
