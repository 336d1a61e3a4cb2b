"""`--dry-run`: what a session would do, on any number of nodes. It launches, meets and writes nothing."""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from parabench.analysis.stats.block_model import SHARP_ENOUGH
from parabench.analysis.text import format
from parabench.cluster.topology import LauncherFlags, topology_of
from parabench.machine import accelerator
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import RANKS_PER_CORE, Machine, Room, this_machine
from parabench.machine.peaks import DEVICES, peak_of
from parabench.plan.case import Case
from parabench.plan.cohorts import SHARE, cohorts, modules_of, share_modules, state_bytes, why_alone
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.plan.collective_protocol import LATENCY, CollectiveProtocol, in_words
from parabench.plan.fields import split_values
from parabench.plan.plan import Plan, unknown_fields
from parabench.plan.protocol import Protocol
from parabench.plan.suite import MACHINES, load_suite
from parabench.plan.turns import TurnsProtocol, turns_protocol
from parabench.plan.validate import entry_of_model
from parabench.session.deadlines import SLOWEST
from parabench.session.links import expected_links
from parabench.session.progress import logger, skipped_lines, trial_lines
from parabench.session.request import Request, TrainingRequest
from parabench.session.resume import SessionState, check_resumable, left_of, resume
from parabench.session.runner import RUNNERS, TrainingRunner, training_operations
from parabench.session.stopping import AdaptiveStopping
from parabench.store import json_text
from parabench.store.record import EXPLAIN_BLOCK, FIRST_BLOCK, REFERENCE_BLOCK, AnyCase, Status
from parabench.store.results import load
from parabench.store.store import STORE_NAME, Store
from parabench.strategies import entry_of
from parabench.workloads import kind_of
from parabench.workloads.collective_turns import most_rounds

# A launch on one node costs about so much beyond its steps (benchmarks/launch_cost.py); on several it costs more.
LAUNCH_S = 0.1

AnyTimed = Case | CollectiveCase

# (case, block, protocol) of a launch to come.
ExpectedLaunch = tuple[Any, int, Any]

# {(case id, whether NCCL only told what it chooses): seconds of a launch}.
Known = Mapping[tuple[str, bool], float]

# More cases than this fill a screen; what is piped on has them all.
SCREENFUL = 20
ALL = "into a pipe or a file all are written"


def dry_runs(request: Request, console: Console) -> int:
    """`dry_run` of each session that the request takes, under a heading where there are several. Raises UsageError."""
    parts = left_of(request)
    code = 0
    for at, part in enumerate(parts, 1):
        if len(parts) > 1:
            log = logger(console, part.prefix, answers=True)
            for line in ([""] if at > 1 else []) + [f"session {at} of {len(parts)}: {part.kind}"]:
                log(line)
        code = max(code, dry_run(part, console))
    return code


def dry_run(request: Request, console: Console) -> int:
    """Say what `run_session` would do of the same request; returns the exit code. Raises UsageError as it would."""
    log = logger(console, request.prefix, answers=True)
    machine, notes = planned_for(request.cluster, os.environ, this_machine(), wants_cuda(request))
    planned = request.plan(machine)
    plan = planned.plan if planned else None
    if plan is None or request.resume:
        with Store.open_to_read(check_resumable(request.out)) as stored:
            state = resume(stored, plan, request.kind, label=request.label)
    else:
        state = SessionState(session_id=0, plan=plan)
    if planned:
        found = [*(finding.message for finding in planned.findings), *trial_lines(planned.plan.cases)]
        notes = [" ".join(planned.question.split()), *notes, *found]
    stopping = request.stopping(state.plan)
    store = request.out / STORE_NAME
    runner = RUNNERS[request.kind](plan=state.plan, done=state.done, references=dict(state.references))
    launches = list(runner.expected())
    links = list(expected_links(state, machine, store)) if request.links and launches else []
    for line in (
        *notes,
        *case_lines(state.plan, SCREENFUL if console.is_terminal else None),
        *plan_lines(state, launches, links, stopping, room=machine.room),
    ):
        log(line)
    times = expected(launches, machine, known_seconds(store, state.plan.protocol), store)
    for at, line in enumerate(times or ["nothing left to launch"]):
        log(f"{'' if at else 'expected:':<11}{line}")
    log("dry run: nothing was launched or written")
    return 0


def wants_cuda(request: Request) -> bool:
    """Whether the request, or else its suite, names CUDA devices."""
    if not isinstance(request, TrainingRequest):
        return request.options.get("device") == accelerator.TYPE
    asked = [values for name, _, values in (text.partition("=") for text in request.axes) if name == "device"]
    if asked:
        return accelerator.TYPE in split_values(asked[0])
    suite = load_suite(request.suite) if request.suite is not None else None
    kinds = [suite.on(machine) for machine in MACHINES] if suite is not None else []
    return any(accelerator.TYPE in each.axes.get("device", ()) for kind in kinds for each in kind.sweeps)


def planned_for(
    flags: LauncherFlags, environ: Mapping[str, str], here: Machine, wants_cuda: bool
) -> tuple[Machine, list[str]]:
    """What is planned for, and in words what is taken for granted of it. Raises UsageError.

    A plan may be for other machines than this one: where it is said how many ranks a node has, each is taken to have
    the devices, or the cores, that so many need.
    """
    topology = topology_of(flags, environ, here, rendezvous=False)
    if topology is None:
        return here, []
    ranks = topology.ranks_per_node
    machine = replace(here, nodes=topology.nodes, ranks_per_node=ranks)
    notes = [f"planned for {format.count(topology.nodes, 'node')} with {ranks:,} ranks per node"]
    if (wants_cuda or here.gpus) and len(here.gpus) < ranks:
        more = (here.gpus[0] if here.gpus else Gpu("CUDA device", None),) * (ranks - len(here.gpus))
        machine = replace(machine, gpus=(*here.gpus, *more), gpus_reason=None)
        notes.append(f"each node is assumed to have {format.count(ranks, 'CUDA device')}; here: {len(here.gpus)}")
    elif not here.gpus and here.ranks("cpu") < ranks:
        notes.append(f"each node is assumed to have cores for {format.count(ranks, 'rank')}; here: {here.cores}")
    return replace(machine, cores=max(here.cores, -(-ranks // RANKS_PER_CORE))), notes


def plan_lines(
    state: SessionState[Any, Any],
    launches: Sequence[ExpectedLaunch],
    links: Sequence[str],
    stopping: AdaptiveStopping | None,
    room: Room,
) -> Iterator[str]:
    """The plan in numbers, with what `links` says of the step before it."""
    plan = state.plan
    of_trainings = isinstance(plan.protocol, Protocol)
    yield f"cases:     {len(plan.cases):,}, each once per block, in {format.count(plan.blocks, 'block')}" + (
        f"; then more for those that may still be the fastest, {_until(stopping)}" if stopping else ""
    )
    if plan.takes_turns:
        yield from _turns(plan, room) if of_trainings else _collective_turns(plan)
    yield f"sizes:     {format.listed(sizes(plan.cases), 8)}"
    if of_trainings:
        yield f"each step: {format.listed(_work(plan.cases), 8)}"
    else:
        ranges = dict.fromkeys(f"{size_text(case.min_bytes)} to {size_text(case.max_bytes)}" for case in plan.cases)
        yield f"buffers:   {format.listed(ranges)}"
    counts = Counter(min(block, FIRST_BLOCK) for _, block, _ in launches)
    runner = RUNNERS[plan.kind](plan=plan, room=room)
    left = count_launches([each for each in launches if each[1] >= FIRST_BLOCK], room)
    total = sum(1 for _ in runner.launches_of(plan.launches()))
    done = f" ({total - left:,} of {total:,} are done)" if state.done else ""
    yield f"launches:  {left:,}{done}{_apart(counts)}"
    yield from (f"links:     {line}" for line in links)
    if of_trainings:
        yield f"steps:     {_steps(plan.protocol)}"
    else:
        yield f"timed:     {in_words(plan.protocol.timing)}; {_calls(plan)}"
    if plan.cases:  # else all were skipped
        ranks, nodes = max((case.world_size, case.nodes) for case in plan.cases)
        yield f"largest:   {_size(ranks, nodes)}; ranks per node: {ranks // nodes:,}"


def _until(stopping: AdaptiveStopping) -> str:
    decided = f"until {100 * SHARP_ENOUGH:g} % would show"
    return decided if stopping.budget_s is None else f"{decided} or {format.duration(stopping.budget_s)} are over"


def _turns(plan: Plan[Case, Protocol], room: Room) -> Iterator[str]:
    """Which cases share launches, and which do not, with the reason."""
    protocol = turns_protocol(plan.protocol, plan.seed, FIRST_BLOCK, [None] * len(plan.cases))
    every = cohorts(plan.cases, room, may_share_modules=True)
    together = [cohort for cohort in every if why_alone(cohort[0]) is None]
    alike = Counter(map(_cohort, together)).items()
    said = format.joined(f"{cohort} ({n:,} launches)" if n > 1 else cohort for cohort, n in alike)
    yield (
        f"turns:     after the first block, {format.count(len(together), 'launch')} per block shared by {said}, "
        f"which take turns in {format.count(protocol.rounds, 'round')} of {protocol.settle} settling and "
        f"{protocol.timed} timed steps"
        f"{f' ({protocol.long * protocol.timed} in {long})' if (long := protocol.lengths.count(protocol.long)) else ''}"
    )
    runner = TrainingRunner(plan=plan, room=room)
    launched = [runner.with_twin(cohort) for cohort in together if len(cohort) > 1]
    if plan.protocol.self_check:
        yield from (f"           measured twice: {cases[-1].label}" for cases in launched)
    yield from (f"           never shared: {why}" for why in _never_shared(every))
    for cases in launched:
        if share_modules(cases, room):
            common = format.joined(str(n) for n in Counter(modules_of(cases)).values() if n > 1)
            yield f"           {common} cases of DDP train one module in turn: memory has no room for one each"
    if len(every) > len(cohorts(plan.cases)):
        held = format.mebibytes(sum(state_bytes(case) for cohort in together for case in cohort))
        there = format.mebibytes(room[together[0][0].device])
        yield (
            f"           split anew in each block: their training states take up to {held}, and a launch's may "
            f"{100 * SHARE:g} % of {there}, or more where first launches show that there is room"
        )


def _collective_turns(plan: Plan[CollectiveCase, CollectiveProtocol]) -> Iterator[str]:
    """The same of collectives."""
    every = cohorts(plan.cases)
    together = [cohort for cohort in every if len(cohort) > 1]
    if together:
        rounds = max(most_rounds(plan.protocol, cohort) for cohort in together)
        how = f"; algorithms of an operation take turns at each size, {format.count(rounds, 'round')} at most"
        yield (
            f"turns:     {format.count(len(together), 'launch')} per block shared by "
            f"{format.joined(map(_cohort, together))}{how if rounds else ', one after the other'}"
        )
    yield from (f"           never shared: {why}" for why in _never_shared(every))


def _never_shared(every: Iterable[Sequence[AnyTimed]]) -> Iterable[str]:
    """Why some cohorts are of one case."""
    return dict.fromkeys(why for cohort in every if (why := why_alone(cohort[0])) is not None)


def _cohort(cases: Sequence[AnyTimed]) -> str:
    """'12 cases of 1 to 4 ranks'."""
    few, most = (pick(case.world_size for case in cases) for pick in (min, max))
    ranks = f"{few:,} to {most:,} ranks" if few < most else format.count(most, "rank")
    return f"{format.count(len(cases), 'case')} of {ranks}"


def case_lines(plan: Plan[Any, Any], most: int | None) -> Iterator[str]:
    """What is skipped and why, then the cases, of both at most `most` lines."""
    skipped = skipped_lines(plan.skipped)
    yield from skipped[:most]
    if most is not None and len(skipped) > most:
        yield f"and more, for {format.count(len(skipped) - most, 'reason')} more; {ALL}"
    yield ""
    rows = [("case", "ranks", "nodes x ranks per node", "needed per node")]
    rows += [_row(case) for case in plan.cases[:most]]
    yield from format.aligned(rows)
    if most is not None and len(plan.cases) > most:
        yield f"and {format.count(len(plan.cases) - most, 'case')} more; {ALL}"
    yield ""


def _row(case: AnyTimed) -> tuple[str, str, str, str]:
    per_node = case.world_size // case.nodes
    needs = f"{format.count(per_node * case.threads, 'core')}"
    if case.device == accelerator.TYPE:
        shared = case.backend == "gloo" and not entry_of(case.strategy).one_process
        needs = format.count(per_node, "CUDA device") + (", or fewer that ranks share" if shared else "")
    return case.label, f"{case.world_size:,}", f"{case.nodes:,} x {per_node:,}", needs


def sizes(cases: Sequence[AnyCase]) -> list[str]:
    """'10,000 ranks on 1,250 nodes (3 cases)', for each, the smallest first."""
    counts = Counter((case.world_size, case.nodes) for case in cases)
    return [f"{_size(*size)} ({format.count(n, 'case')})" for size, n in sorted(counts.items())]


def _size(ranks: int, nodes: int) -> str:
    return f"{format.count(ranks, 'rank')} on {format.count(nodes, 'node')}"


def _work(cases: Sequence[Case]) -> list[str]:
    """What a step computes, for each kind of it."""
    kinds = dict.fromkeys((case.global_batch, case.seq_len, case.data, case.model) for case in cases)
    return [
        f"{format.count(batch, 'sample')}{f' of {length:,} tokens' if length > 1 else ''}, data {data}, model {model}"
        for batch, length, data, model in kinds
    ]


def _apart(counts: Mapping[int, int]) -> str:
    """Those that never count, in words; `counts` has their blocks."""
    some = []
    if counts[REFERENCE_BLOCK]:
        some.append(f"{format.count(counts[REFERENCE_BLOCK], 'reference')} on one device")
    if counts[EXPLAIN_BLOCK]:
        some.append(f"{counts[EXPLAIN_BLOCK]:,} for NCCL's debug log")
    return f", plus {format.joined(some)}" if some else ""


def _steps(protocol: Protocol) -> str:
    times = {"warm-up": protocol.warmup_s, "measured": protocol.measure_s}
    by_time = [f"{seconds:g} s of {kind} steps" for kind, seconds in times.items() if seconds is not None]
    kinds = {"warm-up": protocol.warmup, "measured": protocol.steps, "instrumented": protocol.instrumented}
    kinds |= {"profiled": int(protocol.profile), "with a memory snapshot": int(protocol.memory_snapshot)}
    counted = [f"{n:,} {kind}" for kind, n in kinds.items() if n]
    if not by_time:
        return f"{protocol.all_steps:,} per launch: {', '.join(counted)}"
    return f"per launch: {', '.join(by_time + counted)}; {protocol.all_steps:,} or more"


def _calls(plan: Plan[CollectiveCase, CollectiveProtocol]) -> str:
    """How many calls a launch times, in words."""
    protocol = plan.protocol
    if protocol.mode == LATENCY:
        counts = sorted(len(protocol.schedule(case)) for case in plan.cases)
        return f"{' to '.join(dict.fromkeys(f'{n:,}' for n in (counts[0], counts[-1])))} per launch"
    each = f"{protocol.iterations:,} calls" if protocol.iterations else f"calls for {protocol.measure_s:g} s in total"
    return f"per size and form: {format.count(protocol.batches, 'batch')} of {each}"


def known_seconds(store: Path, protocol: Protocol | CollectiveProtocol) -> Known:
    """The median seconds of a case's launches in a store, of its sessions that took as many steps or calls a launch;
    none where there is no store. Raises UsageError for one that cannot be read."""
    if not os.path.isfile(store):
        return {}
    results = load(store)
    alike = []
    sessions = results.read("session", names=("id", "plan"))
    for number, text in zip(sessions["id"].tolist(), sessions["plan"], strict=True):
        plan = json_text.parsed(text, f"plan of session {number} of {store}")
        kind = plan.get("kind", "training")
        if kind != kind_of(protocol) or not plan.get("protocol"):
            continue
        # Logs of nccl-tests have another mode, and no length.
        if plan["protocol"].get("mode") != getattr(protocol, "mode", None):
            continue
        # What a newer version did with fields that are not known here may have taken any time.
        if unknown_fields(type(protocol), plan["protocol"]):
            continue
        if _amount(type(protocol)(**plan["protocol"])) == _amount(protocol):
            alike.append(number)
    if not alike:
        return {}
    ended = f"status IN ('{Status.OK}', '{Status.WRONG}')"
    launch = results.of(alike).read("launch", ended, ("case_id", "block", "wall_s"))
    if isinstance(protocol, Protocol) and protocol.by_time:
        launch = launch[launch["block"] != REFERENCE_BLOCK]  # it takes other steps than the same case where it counts
    took: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for case_id, block, wall_s in zip(launch["case_id"], launch["block"], launch["wall_s"], strict=True):
        took[case_id, block == EXPLAIN_BLOCK].append(wall_s)
    return {key: statistics.median(seconds) for key, seconds in took.items()}


def _amount(protocol: Protocol | CollectiveProtocol) -> tuple[object, ...]:
    """What of a protocol decides how long a launch takes."""
    if isinstance(protocol, Protocol):
        return protocol.all_steps, protocol.warmup_s, protocol.measure_s
    return (
        protocol.timing, protocol.warmup, protocol.iterations, protocol.batches, protocol.measure_s, protocol.rounds,
    )  # fmt: skip


def expected(launches: Sequence[ExpectedLaunch], machine: Machine, known: Known, store: Path) -> list[str]:
    """How long it takes, in words, and how that is known; `store` is where what is `known` was found."""
    seconds = [_as_measured(known, *each) for each in launches]
    seen = [value for value in seconds if value is not None]
    guessed = [each for each, value in zip(launches, seconds, strict=True) if value is None]
    lines = []
    if seen:
        lines.append(f"{format.duration(sum(seen))} for {format.count(len(seen), 'launch')}, as measured in {store}")
    if guessed:
        starts = count_launches(guessed, machine.room)
        more = f"the start of {format.count(starts, 'launch')}: {format.duration(starts * LAUNCH_S, 1)} or more"
        guess = _guess_calls if isinstance(guessed[0][0], CollectiveCase) else _guess_steps
        lines += [*guess(guessed, machine), more]
        lines[-2:] = [f"plus {lines[-2]}, and {lines[-1]}"]
    return lines


def count_launches(measured: Sequence[ExpectedLaunch], room: Room) -> int:
    """How many launches they are: cases that take turns share one."""
    shared: dict[int, list[Any]] = defaultdict(list)
    for case, block, protocol in measured:
        if isinstance(protocol, TurnsProtocol) or (protocol.rounds and isinstance(protocol, CollectiveProtocol)):
            shared[block].append(case)
    alone = len(measured) - sum(map(len, shared.values()))
    return alone + sum(len(cohorts(cases, room, may_share_modules=True)) for cases in shared.values())


def _as_measured(known: Known, case: Any, block: int, protocol: Any) -> float | None:
    """How long a launch of the case took; of one that it shares no more is known than how many steps it takes there."""
    return None if isinstance(protocol, TurnsProtocol) else known.get((case.id, block == EXPLAIN_BLOCK))


def _guess_calls(launches: Sequence[ExpectedLaunch], machine: Machine) -> Iterator[str]:
    """What calls must take; last, what comes on top of it."""
    bytes_per_s = SLOWEST[launches[0][0].device].bytes_per_s
    seconds = sum(protocol.expected_s(case, bytes_per_s) for case, _, protocol in launches)
    yield f"calls: {format.duration(seconds)} at most, at {bytes_per_s / 1e6:g} MB/s or more"
    yield "data that crosses a link more than once"


def _guess_steps(launches: Sequence[ExpectedLaunch], machine: Machine) -> Iterator[str]:
    """What time and arithmetic must take; last, what comes on top of it."""
    timed = [protocol.seconds for _, _, protocol in launches if protocol.by_time]
    if timed:
        said = f"warm-up and measured steps that go by time, of {format.count(len(timed), 'launch')}"
        yield f"{said}: {format.duration(sum(timed))} or more"
    least: dict[str, float] = defaultdict(float)
    unknown: dict[str, None] = {}
    for case, _, protocol in launches:
        parameters = entry_of_model(case).parameters
        if not parameters:
            unknown[case.model] = None
            continue
        rate, said = _rate(case, machine)
        steps = protocol.after if protocol.by_time else protocol.all_steps
        least[said] += training_operations(parameters, case, steps) / (rate * case.world_size)
    for said, value in least.items():
        if value:
            yield said.format(format.duration(value))
    if unknown:
        yield f"unknown for {format.joined(unknown)}: its parameters are not counted before it is built"
    yield "torch.compile, communication" if any(case.compile for case, _, _ in launches) else "communication"


def _rate(case: Case, machine: Machine) -> tuple[float, str]:
    """Operations a second of one rank, which a core surely reaches and a device never exceeds; and how to say what time
    follows."""
    if case.device == "cpu":
        flops_per_s = SLOWEST[case.device].flops_per_s
        return flops_per_s, f"arithmetic: {{}} at most, at {flops_per_s / 1e9:g} GFLOP/s or more per rank"
    name = machine.gpus[0].name if machine.gpus else ""
    peak, _ = peak_of(name, case.arithmetic.matmul)
    of = name
    if peak is None:
        peak, of = max(
            (device.peak.get(case.arithmetic.matmul, 0.0), "the fastest device known here") for device in DEVICES
        )
    return (
        peak,
        f"arithmetic: {{}} at least, at the {case.arithmetic.matmul} peak of {of}, {peak / 1e12:g} TFLOP/s per rank",
    )
