"""Turn the marks and reports of ranks that train into rows of the results database."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from parabench.launch.outcome import arms_of
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, of_ranks
from parabench.launch.spec import LaunchSpec
from parabench.plan.schedule import BUILD, WARM_UP, TrainingSchedule, Turn
from parabench.probes import CaseReport
from parabench.probes.replicas import replicas_apart
from parabench.probes.step_clock import MARKS
from parabench.store.record import WAIT, Launch, Phase, Sample, Span

Ranks = Sequence[tuple[RankReport, Marks]]


def step_marks(width: int, steps: int | None) -> MarkLayout:
    """Return the layout of marks with `width` timestamps for each of `steps` steps."""

    def position(moments: int) -> str:
        step, part = divmod(moments, width)
        return f"to step {step}, part {part}"

    return MarkLayout(columns=width, moments=width, rows=steps, position=position)


def turn_marks(spec: LaunchSpec) -> MarkLayout:
    """Return the layout of the marks of a launch that trains, with five timestamps for each step.

    If cases are interleaved, the steps of all cases follow in the order of their turns (`plan.schedule.Turn`).
    """
    schedule: TrainingSchedule = spec.protocol
    if not schedule.takes_turns:
        return step_marks(MARKS, None if schedule.by_time else schedule.all_steps)
    all_turns = list(schedule.turns())

    def position(moments: int) -> str:
        step = moments // MARKS
        for turn in all_turns:
            if step < turn.steps:
                break
            step -= turn.steps
        else:
            return "to the end of its rounds"
        label = spec.cases[turn.arm].label
        if turn.round == BUILD:
            return f"to the building of {label}"
        where = "the warm-up" if turn.round == WARM_UP else f"round {turn.round + 1} of {schedule.rounds}"
        return f"to step {step}, part {moments % MARKS}, of {label} in {where}"

    return MarkLayout(columns=MARKS, moments=MARKS, rows=len(owners_of(all_turns)), position=position)


def owners_of(all_turns: Sequence[Turn]) -> list[int]:
    """Return the index of the case of each row of marks."""
    return [turn.arm for turn in all_turns for _ in range(turn.steps)]


def steps_of(all_turns: Sequence[Turn], place: int) -> tuple[npt.NDArray[np.int64], list[Phase]]:
    """Return the rows of marks that are steps of a case, and the phase of each. `place` is the index of the case."""
    steps = [(turn, phase) for turn in all_turns for phase in turn.phases]
    rows = [at for at, (turn, _) in enumerate(steps) if turn.arm == place and turn.round != BUILD]
    return np.array(rows, dtype=np.int64), [steps[at][1] for at in rows]


def record(launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
    """Add the observations of all ranks to a launch. If cases are interleaved, add a launch for each case."""
    schedule: TrainingSchedule = spec.protocol
    if schedule.by_time:
        schedule = schedule.with_counts(*agreed(nodes))
    reports, marks = zip(*of_ranks(nodes), strict=True)
    all_turns = list(schedule.turns())
    cases: Iterable[tuple[int, Launch]] = [(0, launch)]
    if schedule.takes_turns:
        cases = arms_of(launch, spec, marks, MARKS, owners_of(all_turns))
    shared = {"cases": [case.id for case in spec.cases], "protocol": schedule.to_dict()}
    for place, arm in cases:
        rows, phases = steps_of(all_turns, place)
        # If a launch by time failed, its ranks may have room for different numbers of steps.
        ranks = [(report, of_rank[rows[rows < len(of_rank)]]) for report, of_rank in zip(reports, marks, strict=True)]
        record_case(arm, place, ranks[: arm.case.world_size], phases)
        if schedule.takes_turns or spec.protocol.by_time:
            arm.facts["counts"] = dict(zip(("warmup", "measured"), schedule.counts(place), strict=True))
        if schedule.takes_turns:
            arm.facts["turns"] = {**shared, "place": place}
            if spec.pair is not None:  # its rounds that came before the other variant's
                turns = zip(all_turns, reports[0].first, strict=False)
                first = [was for turn, was in turns if turn.arm == place and turn.round >= 0]
                arm.facts["turns"]["pair"] = {"run": spec.pair.run, "side": spec.pair.side, "first": first}
            launch.arms.append(arm)
        else:
            arm.facts["phases"] = phase_windows(ranks, phases)


def record_case(launch: Launch, place: int, ranks: Ranks, phases: Sequence[Phase]) -> None:
    """Add the observations of the case with index `place` to a launch. `phases` has the phase of each step."""
    cases = [report.of(place) for report, _ in ranks]
    launch.facts |= next((case.facts for case in cases if case.facts), {})
    launch.facts |= replicas_apart([case.checksums for case in cases])
    for (report, marks), case in zip(ranks, cases, strict=True):
        for name, value in case.rank_facts.items():
            launch.facts.setdefault(name, []).append({"rank": report.rank, **value})
        launch.samples += samples(marks, report.rank, case, phases)
        launch.spans += spans(marks, report.rank, case, phases)
        launch.collectives += [call._replace(phase=phases[call.step]) for call in case.calls]


def agreed(nodes: Sequence[NodeResult]) -> tuple[int, int]:
    """Return the numbers of (warm-up steps, measured steps) that the ranks of a launch by time agreed on.

    If they did not agree, all steps were warm-up.
    """
    counts = next((node.counts for node in nodes if node.counts), None)
    return counts or (max(len(each) for node in nodes for each in node.marks), 0)


def steps_with_marks(marks: Marks, case: CaseReport) -> Iterator[tuple[int, Marks]]:
    """Yield (step, its marks) for each row of marks."""
    return zip(range(len(marks)) if case.marked is None else case.marked, marks, strict=True)


def samples(marks: Marks, rank: int, case: CaseReport, phases: Sequence[Phase]) -> Iterator[Sample]:
    """Yield the samples of a rank: the times of each finished step, the losses, and the memory.

    Waits for further batches of a step count as waits for data.
    """
    for step, row in steps_with_marks(marks, case):
        if math.isnan(row[-1]):
            break
        yield Sample(rank, step, phases[step], "step_s", float(row[-1] - row[0]))
        waited = case.later_waits.get(step, 0.0)
        longer = {"data_s": waited, "forward_backward_s": -waited}
        for part, begin, end in parts_of(row):
            yield Sample(rank, step, phases[step], part, float(end - begin) + longer.get(part, 0.0))
    for step, loss in enumerate(case.losses):
        yield Sample(rank, step, phases[step], "loss", loss if math.isfinite(loss) else None)
    if case.grad_norm is not None:
        norm = case.grad_norm
        yield Sample(rank, 0, Phase.WARMUP, "grad_norm", norm if math.isfinite(norm) else None)
    for step, metric, value in case.readings:
        yield Sample(rank, step, phases[step], metric, value)
    for metric, value in case.numbers.items():
        yield Sample(rank, None, Phase.MEASURE, metric, value)


def spans(marks: Marks, rank: int, case: CaseReport, phases: Sequence[Phase]) -> Iterator[Span]:
    """Yield the parts of a rank's instrumented steps, and its waits for communication."""
    for step, row in steps_with_marks(marks, case):
        if phases[step] is Phase.INSTRUMENT and not math.isnan(row[-1]):
            for part, begin, end in parts_of(row):
                yield Span(rank, step, part.removesuffix("_s"), float(begin), float(end))
    for step, start_s, end_s in case.stalls:
        yield Span(rank, step, WAIT, start_s, end_s)


def phase_windows(ranks: Ranks, phases: Sequence[Phase]) -> dict[str, tuple[float, float]]:
    """Return {phase: (begin, end)}, from the first start of a step to the last end, over all ranks.

    Times are on the clock of the host. Phases without a finished step are missing.
    """
    windows: dict[str, tuple[float, float]] = {}
    for report, marks in ranks:
        for step, row in steps_with_marks(marks, report.of(0)):
            if not math.isnan(row[-1]):
                phase = phases[step]
                begin, end = windows.get(phase, (math.inf, -math.inf))
                windows[phase.value] = min(begin, float(row[0])), max(end, float(row[-1]))
    return windows


def parts_of(row: Marks) -> Iterator[tuple[str, float, float]]:
    """Yield (part, begin, end) from the marks of a step.

    If forward and backward alternated, the mark between them is missing. A watched loop has a sixth mark, at its end.
    """
    begin, loaded, forward, backward, end, *later = row
    yield "data_s", begin, loaded
    if math.isnan(forward):
        yield "forward_backward_s", loaded, backward
    else:
        yield "forward_s", loaded, forward
        yield "backward_s", forward, backward
    yield "optimizer_s", backward, end
    if later:
        yield "other_s", end, later[0]
