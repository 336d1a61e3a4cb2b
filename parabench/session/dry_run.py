"""Print the launches of a session and their expected time for `--dry-run`. Nothing is launched or written."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from parabench import json_text
from parabench.analysis import format
from parabench.cluster.topology import LauncherFlags, topology_of
from parabench.machine import accelerator
from parabench.machine.machine import RANKS_PER_CORE, Machine, this_machine
from parabench.plan.cohorts import cohorts, why_alone
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.session.deadlines import BYTES_PER_S, FLOPS_PER_S, training_operations
from parabench.session.progress import logger, skipped_lines, trial_lines
from parabench.session.request import Request
from parabench.session.resume import SessionState, check_resumable, left_of, resume
from parabench.session.runner import Runner
from parabench.store.record import EXPLAIN_REPETITION, FIRST_REPETITION, REFERENCE_REPETITION, Status
from parabench.store.results import load
from parabench.store.store import STORE_NAME, Store

# The fields of a protocol that decide how long a launch takes.
AMOUNT = {
    "warmup", "steps", "warmup_s", "measure_s", "instrumented", "profile", "memory_snapshot", "mode", "graph",
    "iterations", "batches", "rounds",
}  # fmt: skip
# The case, repetition and expected seconds of a launch to come.
ExpectedLaunch = tuple[Any, int, float | None]


def dry_run(request: Request, console: Console) -> int:
    """Print what each session of the request would launch. Raises UsageError as a session does."""
    parts = left_of(request)
    for at, part in enumerate(parts, 1):
        heading = [f"session {at} of {len(parts)}: {part.kind}"] if len(parts) > 1 else []
        for line in (*([""] if at > 1 else ()), *heading, *lines(part)):
            logger(console, part.prefix, answers=True)(line)
    return 0


def lines(request: Request) -> list[str]:
    """Return the lines that describe the launches of a session and their expected time. Raises UsageError."""
    axes = dict(text.partition("=")[::2] for text in request.axes)
    devices = (axes.get("device") or request.options.get("device") or "").split(",")
    machine, notes = planned_for(request.cluster, this_machine(), accelerator.TYPE in devices)
    planned = request.plan(machine)
    if planned is None or request.resume:
        with Store.open_to_read(check_resumable(request.out)) as stored:
            state = resume(stored, planned.plan if planned else None, request.kind, label=request.label)
    else:
        state = SessionState(session_id=0, plan=planned.plan)
    if planned:
        warnings = [*(finding.message for finding in planned.findings), *trial_lines(planned.plan.cases)]
        notes = [" ".join(planned.question.split()), *notes, *warnings]
    store, plan = request.out / STORE_NAME, state.plan
    runner = Runner(plan=plan, done=state.done, references=dict(state.references))
    known = known_seconds(store, request.kind, plan.protocol)
    launches = [(*each[:2], expected_s(each, known)) for each in runner.expected()]
    found = [*notes, *skipped_lines(plan.skipped), "", *table(plan, launches), ""]
    adding_s = request.adding_s(plan)
    if adding_s is not None and math.isfinite(adding_s):
        found.append(f"racing adds shared launches, for {format.duration(adding_s)} in all (--budget)")
    return [*found, estimate(launches, known, store), "dry run: nothing was launched or written"]


def planned_for(flags: LauncherFlags, here: Machine, wants_cuda: bool) -> tuple[Machine, list[str]]:
    """Return the machine to plan for, with enough devices and cores on each node, and notes on these assumptions."""
    topology = topology_of(flags, here, rendezvous=False)
    if topology is None:
        return here, []
    ranks = topology.ranks_per_node
    machine = replace(here, nodes=topology.nodes, ranks_per_node=ranks)
    notes = [f"planned for {format.count(topology.nodes, 'node')} with {ranks:,} ranks per node"]
    if (wants_cuda or here.gpus) and len(here.gpus) < ranks:
        more = (here.gpus[0] if here.gpus else accelerator.Gpu("CUDA device", None),) * (ranks - len(here.gpus))
        machine = replace(machine, gpus=(*here.gpus, *more), gpus_reason=None)
        notes.append(f"each node is assumed to have {format.count(ranks, 'CUDA device')}; here: {len(here.gpus)}")
    elif not here.gpus and here.ranks("cpu") < ranks:
        notes.append(f"each node is assumed to have cores for {format.count(ranks, 'rank')}; here: {here.cores}")
    return replace(machine, cores=max(here.cores, -(-ranks // RANKS_PER_CORE))), notes


def expected_s(launch: tuple[Any, int, Any], known: Mapping[str, float]) -> float | None:
    """Return the `known` seconds of a (case, repetition, protocol), or an estimate for the slowest device.

    Returns None for a model of unknown size.
    """
    case, repetition, protocol = launch
    if repetition != EXPLAIN_REPETITION and case.id in known:
        return known[case.id]
    if case.kind == "collectives":
        return float(protocol.expected_s(case, BYTES_PER_S[case.device]))
    steps, by_time_s = (protocol.after, protocol.seconds) if protocol.by_time else (protocol.all_steps, 0.0)
    operations = training_operations(case, steps)
    return by_time_s + operations / (FLOPS_PER_S[case.device] * case.world_size) if operations else None


def table(plan: Plan[Any, Any], launches: Sequence[ExpectedLaunch]) -> Iterator[str]:
    """Yield a row per configuration, then the reasons why some share no launch."""
    rows = [("configuration", "nodes x ranks per node", "launches", "expected time")]
    for case in plan.cases:
        own = [seconds for each, repetition, seconds in launches if each == case and repetition >= FIRST_REPETITION]
        place = f"{case.nodes:,} x {case.world_size // case.nodes:,}"
        rows.append((case.label, place, f"{len(own):,}", _total(own)))
    yield from format.aligned(rows)
    if plan.protocol.takes_turns:
        alone = dict.fromkeys(why for each in cohorts(plan.cases) if (why := why_alone(each[0])) is not None)
        yield from (f"never shared: {why}" for why in alone)


def estimate(launches: Sequence[ExpectedLaunch], known: Collection[str], store: Path) -> str:
    """Return the expected time of all launches, including references, as text with its basis."""
    if not launches:
        return "expected: nothing left to launch"
    estimated = [case for case, repetition, _ in launches if case.id not in known or repetition == EXPLAIN_REPETITION]
    count = len(launches) - len(estimated)
    basis = [f"{format.count(count, 'launch')} as measured in {store}"] if count else []
    if estimated:
        device = estimated[0].device
        rate = f"{FLOPS_PER_S[device] / 1e9:g} GFLOP/s per rank, without communication"
        rate = f"{BYTES_PER_S[device] / 1e6:g} MB/s" if estimated[0].kind == "collectives" else rate
        basis.append(f"{format.count(len(estimated), 'launch')} estimated: upper bound from {rate}")
    return f"expected: {_total([seconds for _, _, seconds in launches])} ({'; '.join(basis)})"


def _total(seconds: Sequence[float | None]) -> str:
    return "unknown" if None in seconds else format.duration(sum(filter(None, seconds)))


def known_seconds(store: Path, kind: str, protocol: Any) -> dict[str, float]:
    """Return the median seconds of stored launches with equal numbers of steps or calls, by case id.

    Raises UsageError.
    """
    if not store.is_file():
        return {}
    results = load(store)
    sessions = results.of(results.of_kind(kind)).read("session", names=("id", "plan"))
    plans = [json_text.parsed(text, f"a plan of {store}").get("protocol") or {} for text in sessions["plan"]]
    amount = {name: getattr(protocol, name) for name in AMOUNT if hasattr(protocol, name)}
    alike = [amount.items() <= plan.items() for plan in plans]
    ended = f"status IN ('{Status.OK}', '{Status.WRONG}') AND repetition != {EXPLAIN_REPETITION}"
    if isinstance(protocol, Protocol) and protocol.alone().by_time:  # references have a fixed number of steps
        ended += f" AND repetition != {REFERENCE_REPETITION}"
    launches = results.of(sessions["id"][alike].tolist()).read("launch", ended, ("case_id", "wall_s"))
    return dict(launches.groupby("case_id")["wall_s"].median())
