"""`parabench run --dry-run`: what a session would do, on any number of nodes. It launches, meets and writes nothing."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from parabench.analysis.text import format
from parabench.cluster.topology import LauncherFlags, topology_of
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import RANKS_PER_CORE, Gpu, Machine, this_machine
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.fields import split_values
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import MACHINES, Suite, load_suite
from parabench.session.estimate import Launches, expected, known_seconds
from parabench.session.links import expected_links
from parabench.session.progress import say
from parabench.session.resume import Opened, resume
from parabench.session.session import Request, check_bare_resume, plan_request, snapshotless
from parabench.session.stopping import Until
from parabench.session.walking import grouped
from parabench.store.record import AnyCase, check_label
from parabench.store.results import check_store
from parabench.store.store import STORE_NAME, Store
from parabench.strategies import entry_of

# More cases than this fill a screen; what is piped on has them all.
SCREENFUL = 20
ALL = "into a pipe or a file all are written"


def dry_run(request: Request, console: Console) -> int:
    """Say what `run.run_suite` would do of the same request; returns the exit code. Raises UsageError as it would."""
    until = Until.asked(request.until_decided, request.budget)
    if request.label is not None:
        check_label(request.label)
    if request.suite is None:
        check_bare_resume(request)
    suite = load_suite(request.suite) if request.suite is not None else None
    machine, notes = planned_for(request.cluster, os.environ, this_machine(), wants_cuda(request, suite))
    plan = plan_request(request, suite, machine) if suite is not None else None
    store = request.out / STORE_NAME
    opened = left_in(store, plan, label=request.label) if request.resume else None
    if opened is None:
        assert plan is not None
        opened = Opened(session_id=0, plan=plan)
    if suite is not None and plan is not None:
        notes += [finding.message for finding in snapshotless(request, suite, plan)]
        say(console, " ".join(suite.question.split()))
    links = list(expected_links(opened, machine, store)) if request.links else []
    for line in (*notes, *_lines(opened, machine, store, until, links, SCREENFUL if console.is_terminal else None)):
        say(console, line)
    return 0


def wants_cuda(request: Request, suite: Suite | None) -> bool:
    """Whether the request, or else the suite, names CUDA devices."""
    asked = [values for name, _, values in (text.partition("=") for text in request.axes) if name == "device"]
    if asked:
        return accelerator.TYPE in split_values(asked[0])
    kinds = [suite.on(machine) for machine in MACHINES] if suite is not None else []
    return any(accelerator.TYPE in each.axes.get("device", ()) for kind in kinds for each in kind.sweeps)


def planned_for(
    flags: LauncherFlags, environ: Mapping[str, str], here: Machine, wants_cuda: bool
) -> tuple[Machine, list[str]]:
    """What is planned for, and in words what is taken for granted of it. Raises UsageError.

    A plan may be for other machines than this one: where it is said how many ranks a node has, each is taken to have
    the devices, or the cores, that so many need.
    """
    site = topology_of(flags, environ, here, meeting=False)
    if site is None:
        return here, []
    ranks = site.ranks_per_node
    machine = replace(here, nodes=site.nodes, ranks_per_node=ranks)
    notes = [f"planned for {format.count(site.nodes, 'node')} with {ranks:,} ranks per node"]
    if (wants_cuda or here.gpus) and len(here.gpus) < ranks:
        more = (here.gpus[0] if here.gpus else Gpu("CUDA device", None),) * (ranks - len(here.gpus))
        machine = replace(machine, gpus=(*here.gpus, *more), gpus_reason=None)
        notes.append(f"each node is taken to have {format.count(ranks, 'CUDA device')}; here: {len(here.gpus)}")
    elif not here.gpus and here.ranks("cpu") < ranks:
        notes.append(f"each node is taken to have cores for {format.count(ranks, 'rank')}; here: {here.cores}")
    return replace(machine, cores=max(here.cores, -(-ranks // RANKS_PER_CORE))), notes


def left_in(
    path: Path, plan: Plan[Any, Any] | None, kind: str = "training", label: str | None = None
) -> Opened[Any, Any]:
    """The last session of a store, as `--resume` would continue it; the store is only read. Raises UsageError."""
    if not os.path.isfile(path):
        raise UsageError(f"{path} does not exist, so it holds no session to resume; run without --resume")
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        check_store(db, path)
        return resume(Store(path, db), plan, kind, label=label)


def _lines(
    opened: Opened[Case, Protocol],
    machine: Machine,
    store: Path,
    until: Until | None,
    links: Sequence[str],
    most: int | None,
) -> Iterator[str]:
    """The plan, with what `links` says of the step before it; of its cases at most `most` by name."""
    plan, protocol, launches = opened.plan, opened.plan.protocol, Launches.of(opened)
    yield from case_lines(plan, most)
    blocks = format.count(plan.blocks, "block")
    yield f"cases:     {len(plan.cases):,}, each once a block, in {blocks}" + (
        "; --until-decided may add more of those that may be the fastest" if until else ""
    )
    yield f"sizes:     {format.listed(sizes(plan.cases), 8)}"
    yield f"each step: {format.listed(_work(plan.cases), 8)}"
    yield f"launches:  {left_words(opened, len(launches.counted))}{_apart(launches)}"
    yield from links_lines(links, len(launches))
    yield f"steps:     {_steps(protocol)}"
    yield f"largest:   {largest(plan.cases)}"
    yield from expected_lines(list(expected(launches, protocol, machine, known_seconds(store, protocol), store)))


def case_lines(plan: Plan[Any, Any], most: int | None) -> Iterator[str]:
    """What is skipped and why, then the cases, of both at most `most` lines."""
    reasons = grouped(plan.skipped)
    for reason in list(reasons)[:most]:
        labels = reasons[reason]
        yield f"skipped {labels[0] if len(labels) == 1 else f'{len(labels)} cases'}: {reason}"
    if most is not None and len(reasons) > most:
        yield f"and more, for {format.count(len(reasons) - most, 'reason')} more; {ALL}"
    yield ""
    rows = [("case", "ranks", "nodes x ranks per node", "a node needs")]
    rows += [_row(case) for case in plan.cases[:most]]
    yield from format.aligned(rows)
    if most is not None and len(plan.cases) > most:
        yield f"and {format.count(len(plan.cases) - most, 'case')} more; {ALL}"
    yield ""


def left_words(opened: Opened[Any, Any], left: int) -> str:
    """How many launches are left, and of how many where some are done."""
    planned = len(opened.plan.turns())
    return f"{left:,}" + (f" ({planned - left:,} of {planned:,} are done)" if opened.done else "")


def links_lines(links: Sequence[str], left: int) -> Iterator[str]:
    """What is said of links, which are measured before a launch, if one is left."""
    yield from (f"links:     {line}" for line in links if left)


def largest(cases: Sequence[AnyCase]) -> str:
    """The launch of most ranks, and how many of them a node has."""
    ranks, nodes = max((case.world_size, case.nodes) for case in cases)
    return f"{_size(ranks, nodes)}; ranks per node: {ranks // nodes:,}"


def expected_lines(known: Sequence[str]) -> Iterator[str]:
    """What is expected, and the end."""
    first, *more = known or ["nothing is left to launch"]
    yield f"expected:  {first}"
    yield from (f"           {line}" for line in more)
    yield "a dry run: nothing was launched or written"


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


def _apart(launches: Launches) -> str:
    """Those that never count, in words."""
    some = []
    if launches.references:
        some.append(f"{format.count(len(launches.references), 'reference')} on one device")
    if launches.explaining:
        some.append(f"{len(launches.explaining):,} in which NCCL tells what it chooses")
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
