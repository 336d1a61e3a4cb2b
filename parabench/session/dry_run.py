"""`--dry-run`: what a session would do, on any number of nodes. It launches, meets and writes nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from parabench.analysis.text import format
from parabench.cluster.topology import LauncherFlags, topology_of
from parabench.machine import accelerator
from parabench.machine.machine import RANKS_PER_CORE, Gpu, Machine, this_machine
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase, size_text
from parabench.plan.collective_protocol import LATENCY, CollectiveProtocol, in_words
from parabench.plan.fields import split_values
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import MACHINES, load_suite
from parabench.session.estimate import ExpectedLaunch, expected, known_seconds
from parabench.session.links import expected_links
from parabench.session.progress import logger, skipped_lines
from parabench.session.request import Request, TrainingRequest
from parabench.session.resume import SessionState, check_resumable, resume
from parabench.session.runner import RUNNERS
from parabench.session.session import planned_of
from parabench.store.record import EXPLAIN_BLOCK, FIRST_BLOCK, REFERENCE_BLOCK, AnyCase
from parabench.store.store import STORE_NAME, Store
from parabench.strategies import entry_of

# More cases than this fill a screen; what is piped on has them all.
SCREENFUL = 20
ALL = "into a pipe or a file all are written"


def dry_run(request: Request, console: Console) -> int:
    """Say what `run_session` would do of the same request; returns the exit code. Raises UsageError as it would."""
    log = logger(console, request.prefix)
    stopping = request.stopping()
    machine, notes = planned_for(request.cluster, os.environ, this_machine(), wants_cuda(request))
    planned = planned_of(request, machine)
    state = (
        SessionState(session_id=0, plan=planned.plan)
        if planned and not request.resume
        else stored_state(request, planned.plan if planned else None)
    )
    if planned:
        notes = [" ".join(planned.question.split()), *notes, *(finding.message for finding in planned.findings)]
    store = request.out / STORE_NAME
    launches = list(
        RUNNERS[request.kind](plan=state.plan, done=state.done, references=dict(state.references)).expected()
    )
    links = list(expected_links(state, machine, store)) if request.links and launches else []
    most = SCREENFUL if console.is_terminal else None
    for line in (
        *notes,
        *case_lines(state.plan, most),
        *plan_lines(state, launches, links, until=bool(stopping)),
    ):
        log(line)
    first, *more = expected(launches, machine, known_seconds(store, state.plan.protocol), store) or [
        "nothing is left to launch"
    ]
    log(f"expected:  {first}")
    for line in more:
        log(f"           {line}")
    log("a dry run: nothing was launched or written")
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
        notes.append(f"each node is taken to have {format.count(ranks, 'CUDA device')}; here: {len(here.gpus)}")
    elif not here.gpus and here.ranks("cpu") < ranks:
        notes.append(f"each node is taken to have cores for {format.count(ranks, 'rank')}; here: {here.cores}")
    return replace(machine, cores=max(here.cores, -(-ranks // RANKS_PER_CORE))), notes


def stored_state(request: Request, plan: Plan[Any, Any] | None) -> SessionState[Any, Any]:
    """The last session of the store, as `--resume` would continue it; the store is only read. Raises UsageError."""
    path = check_resumable(request.out)
    with Store.open_to_read(path) as store:
        return resume(store, plan, request.kind, label=request.label)


def plan_lines(
    state: SessionState[Any, Any], launches: Sequence[ExpectedLaunch], links: Sequence[str], until: bool
) -> Iterator[str]:
    """The plan in numbers, with what `links` says of the step before it."""
    plan = state.plan
    of_trainings = isinstance(plan.protocol, Protocol)
    yield f"cases:     {len(plan.cases):,}, each once a block, in {format.count(plan.blocks, 'block')}" + (
        "; --until-decided may add more of those that may be the fastest" if until else ""
    )
    yield f"sizes:     {format.listed(sizes(plan.cases), 8)}"
    if of_trainings:
        yield f"each step: {format.listed(_work(plan.cases), 8)}"
    else:
        ranges = dict.fromkeys(f"{size_text(case.min_bytes)} to {size_text(case.max_bytes)}" for case in plan.cases)
        yield f"buffers:   {format.listed(ranges)}"
    counts = Counter(min(block, FIRST_BLOCK) for _, block, _ in launches)
    left, total = counts[FIRST_BLOCK], len(plan.launches())
    done = f" ({total - left:,} of {total:,} are done)" if state.done else ""
    yield f"launches:  {left:,}{done}{_apart(counts)}"
    yield from (f"links:     {line}" for line in links)
    if of_trainings:
        yield f"steps:     {_steps(plan.protocol)}"
    else:
        yield f"timed:     {in_words(plan.protocol.timing)}; {_calls(plan)}"
    ranks, nodes = max((case.world_size, case.nodes) for case in plan.cases)
    yield f"largest:   {_size(ranks, nodes)}; ranks per node: {ranks // nodes:,}"


def case_lines(plan: Plan[Any, Any], most: int | None) -> Iterator[str]:
    """What is skipped and why, then the cases, of both at most `most` lines."""
    skipped = skipped_lines(plan.skipped)
    yield from skipped[:most]
    if most is not None and len(skipped) > most:
        yield f"and more, for {format.count(len(skipped) - most, 'reason')} more; {ALL}"
    yield ""
    rows = [("case", "ranks", "nodes x ranks per node", "a node needs")]
    rows += [_row(case) for case in plan.cases[:most]]
    yield from format.aligned(rows)
    if most is not None and len(plan.cases) > most:
        yield f"and {format.count(len(plan.cases) - most, 'case')} more; {ALL}"
    yield ""


def _row(case: Case | CollectiveCase) -> tuple[str, str, str, str]:
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
        some.append(f"{counts[EXPLAIN_BLOCK]:,} in which NCCL tells what it chooses")
    return f", and apart from them {format.joined(some)}" if some else ""


def _steps(protocol: Protocol) -> str:
    times = {"warm-up": protocol.warmup_s, "measured": protocol.measure_s}
    by_time = [f"{seconds:g} s of {kind} steps" for kind, seconds in times.items() if seconds is not None]
    kinds = {"warm-up": protocol.warmup, "measured": protocol.steps, "instrumented": protocol.instrumented}
    kinds |= {"profiled": int(protocol.profile), "with a memory snapshot": int(protocol.memory_snapshot)}
    counted = [f"{n:,} {kind}" for kind, n in kinds.items() if n]
    if not by_time:
        return f"{protocol.all_steps:,} a launch: {', '.join(counted)}"
    return f"a launch: {', '.join(by_time + counted)}; {protocol.all_steps:,} or more"


def _calls(plan: Plan[CollectiveCase, CollectiveProtocol]) -> str:
    """How many calls a launch times, in words."""
    protocol = plan.protocol
    if protocol.mode == LATENCY:
        counts = sorted(len(protocol.schedule(case)) for case in plan.cases)
        return f"{' to '.join(dict.fromkeys(f'{n:,}' for n in (counts[0], counts[-1])))} a launch"
    each = f"{protocol.iterations:,} calls" if protocol.iterations else f"calls for {protocol.measure_s:g} s in all"
    return f"of each size and form {format.count(protocol.batches, 'batch')} of {each}"
