"""`--dry-run`: what a session would launch, on any number of nodes. Nothing is launched or written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from parabench.analysis.text import format
from parabench.cluster.topology import LauncherFlags, topology_of
from parabench.machine import accelerator
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import RANKS_PER_CORE, Machine, this_machine
from parabench.machine.peaks import DEVICES, peak_of
from parabench.plan.case import Case
from parabench.plan.cohorts import cohorts, why_alone
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.fields import split_values
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import MACHINES, load_suite
from parabench.plan.turns import TurnsProtocol
from parabench.plan.validate import entry_of_model
from parabench.session.deadlines import SLOWEST
from parabench.session.links import expected_links
from parabench.session.progress import logger, skipped_lines, trial_lines
from parabench.session.request import Request, TrainingRequest
from parabench.session.resume import SessionState, check_resumable, left_of, resume
from parabench.session.runner import RUNNERS, training_operations
from parabench.store import json_text
from parabench.store.record import EXPLAIN_BLOCK, FIRST_BLOCK, REFERENCE_BLOCK, Status
from parabench.store.results import load
from parabench.store.store import STORE_NAME, Store

# The fields of a protocol that decide how long a launch takes.
_AMOUNT = (
    "warmup", "steps", "warmup_s", "measure_s", "instrumented", "profile", "memory_snapshot", "mode", "graph",
    "iterations", "batches", "rounds",
)  # fmt: skip

# (case, block, protocol) of a launch to come.
ExpectedLaunch = tuple[Any, int, Any]


def dry_runs(request: Request, console: Console) -> int:
    """`dry_run` of each session of the request, under a heading if there are several. Raises UsageError."""
    parts = left_of(request)
    for at, part in enumerate(parts, 1):
        if len(parts) > 1:
            log = logger(console, part.prefix, answers=True)
            for line in ([""] if at > 1 else []) + [f"session {at} of {len(parts)}: {part.kind}"]:
                log(line)
        dry_run(part, console)
    return 0


def dry_run(request: Request, console: Console) -> int:
    """Print what a session of the request would launch and the expected time. Raises UsageError as a session does."""
    machine, notes = planned_for(request.cluster, this_machine(), wants_cuda(request))
    planned = request.plan(machine)
    plan = planned.plan if planned else None
    if plan is None or request.resume:
        with Store.open_to_read(check_resumable(request.out)) as stored:
            state = resume(stored, plan, request.kind, label=request.label)
    else:
        state = SessionState(session_id=0, plan=plan)
    if planned:
        warnings = [*(finding.message for finding in planned.findings), *trial_lines(planned.plan.cases)]
        notes = [" ".join(planned.question.split()), *notes, *warnings]
    store = request.out / STORE_NAME
    runner = RUNNERS[request.kind](plan=state.plan, done=state.done, references=dict(state.references))
    launches = list(runner.expected())
    times = Times(store, known_seconds(store, request.kind, state.plan.protocol), machine)
    done = sum(block >= FIRST_BLOCK for _, block in state.done)
    log = logger(console, request.prefix, answers=True)
    for line in (
        *notes,
        *skipped_lines(state.plan.skipped),
        "",
        *table(state.plan, launches, times),
        "",
        *(f"links: {line}" for line in (expected_links(state, machine, store) if request.links and launches else ())),
        *([f"done: {format.count(done, 'launch')}"] if done else []),
        estimate(launches, times),
        "dry run: nothing was launched or written",
    ):
        log(line)
    return 0


def wants_cuda(request: Request) -> bool:
    """Return whether the request, or else its suite, names CUDA devices."""
    if not isinstance(request, TrainingRequest):
        return request.options.get("device") == accelerator.TYPE
    asked = [values for name, _, values in (text.partition("=") for text in request.axes) if name == "device"]
    if asked:
        return accelerator.TYPE in split_values(asked[0])
    suite = load_suite(request.suite) if request.suite is not None else None
    kinds = [suite.on(machine) for machine in MACHINES] if suite is not None else []
    return any(accelerator.TYPE in each.axes.get("device", ()) for kind in kinds for each in kind.sweeps)


def planned_for(flags: LauncherFlags, here: Machine, wants_cuda: bool) -> tuple[Machine, list[str]]:
    """Return the machine to plan for, and the assumptions about it in words. Raises UsageError.

    If the flags name nodes, each node is assumed to have the devices or cores that its ranks need.
    """
    topology = topology_of(flags, here, rendezvous=False)
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


@dataclass(frozen=True)
class Times:
    """The seconds of launches: as `store` has them, or else of the arithmetic or the transfers alone.

    `known` are the medians by case id and whether NCCL's log was read. A launch that configurations share is estimated.
    """

    store: Path
    known: Mapping[tuple[str, bool], float]
    machine: Machine

    def measured(self, launch: ExpectedLaunch) -> float | None:
        """Return the seconds that such a launch took, `None` if there was none."""
        case, block, _ = launch
        return None if is_shared(launch) else self.known.get((case.id, block == EXPLAIN_BLOCK))

    def expected(self, launch: ExpectedLaunch) -> float | None:
        """Return the measured seconds, or else the estimate; `None` if the size of the model is unknown."""
        case, _, protocol = launch
        measured = self.measured(launch)
        if measured is not None:
            return measured
        if isinstance(case, CollectiveCase):
            return float(protocol.expected_s(case, SLOWEST[case.device].bytes_per_s))
        parameters = entry_of_model(case).parameters
        if not parameters:
            return None
        steps = protocol.after if protocol.by_time else protocol.all_steps
        by_time = protocol.seconds if protocol.by_time else 0.0
        return float(by_time + training_operations(parameters, case, steps) / (self._rate(case)[0] * case.world_size))

    def basis(self, launches: Sequence[ExpectedLaunch]) -> str:
        """Describe what the expected time consists of."""
        estimated = [each for each in launches if self.measured(each) is None]
        count = len(launches) - len(estimated)
        parts = [f"{format.count(count, 'launch')} as measured in {self.store}"] if count else []
        if estimated:
            case = estimated[0][0]
            if isinstance(case, CollectiveCase):
                rate = f"upper bound from {SLOWEST[case.device].bytes_per_s / 1e6:g} MB/s"
            else:
                rate = self._rate(case)[1] + ", without communication"
            parts.append(f"{len(estimated):,} estimated: {rate}")
        return "; ".join(parts)

    def _rate(self, case: Case) -> tuple[float, str]:
        """Return the operations per second of a rank, and what they are: the least of a CPU, the most of a device."""
        if case.device == "cpu":
            flops_per_s = SLOWEST[case.device].flops_per_s
            return flops_per_s, f"upper bound from {flops_per_s / 1e9:g} GFLOP/s per rank"
        name, kind = self.machine.gpus[0].name if self.machine.gpus else "", case.arithmetic.matmul
        peak, of = peak_of(name, kind)[0], name
        if peak is None:
            peak, of = max(device.peak.get(kind, 0.0) for device in DEVICES), "the fastest known device"
        return peak, f"lower bound from the {kind} peak of {of}"


def is_shared(launch: ExpectedLaunch) -> bool:
    """Return whether a launch may run several configurations."""
    protocol = launch[2]
    return isinstance(protocol, TurnsProtocol) or bool(isinstance(protocol, CollectiveProtocol) and protocol.rounds)


def table(plan: Plan[Any, Any], launches: Sequence[ExpectedLaunch], times: Times) -> Iterator[str]:
    """Yield a row per configuration, then why some never share a launch."""
    rows = [("configuration", "nodes x ranks per node", "own launches", "shared launches", "expected time")]
    for case in plan.cases:
        own = [each for each in launches if each[0] == case and each[1] >= FIRST_BLOCK]
        shared = sum(map(is_shared, own))
        place = f"{case.nodes:,} x {case.world_size // case.nodes:,}"
        rows.append((case.label, place, f"{len(own) - shared:,}", f"{shared:,}", _total(map(times.expected, own))))
    yield from format.aligned(rows)
    if plan.takes_turns:
        alone = dict.fromkeys(why for each in cohorts(plan.cases) if (why := why_alone(each[0])) is not None)
        yield from (f"never shared: {why}" for why in alone)


def estimate(launches: Sequence[ExpectedLaunch], times: Times) -> str:
    """Return the time of all launches in words, and its basis."""
    if not launches:
        return "expected: nothing left to launch"
    references = sum(block == REFERENCE_BLOCK for _, block, _ in launches)
    logs = sum(block == EXPLAIN_BLOCK for _, block, _ in launches)
    extra = [format.count(references, "reference")] if references else []
    extra += [f"{logs:,} for NCCL's debug log"] if logs else []
    total = f"{_total(map(times.expected, launches))}{f' with {format.joined(extra)}' if extra else ''}"
    return f"expected: {total} ({times.basis(launches)})"


def _total(seconds: Iterable[float | None]) -> str:
    known = list(seconds)
    return "unknown" if None in known else format.duration(sum(filter(None, known)))


def known_seconds(store: Path, kind: str, protocol: Protocol | CollectiveProtocol) -> dict[tuple[str, bool], float]:
    """Return the median seconds of launches in a store, by case id and whether NCCL's log was read.

    Only sessions of the same kind with as many steps or calls per launch count. Raises UsageError if the store cannot
    be read.
    """
    if not store.is_file():
        return {}
    results = load(store)
    sessions = results.of(results.of_kind(kind)).read("session", names=("id", "plan"))
    plans = [
        json_text.parsed(text, f"plan of session {number} of {store}").get("protocol") or {}
        for number, text in zip(sessions["id"], sessions["plan"], strict=True)
    ]
    amount = {name: getattr(protocol, name) for name in _AMOUNT if hasattr(protocol, name)}
    alike = [amount.items() <= plan.items() for plan in plans]
    ended = f"status IN ('{Status.OK}', '{Status.WRONG}')"
    launches = results.of(sessions["id"][alike].tolist()).read("launch", ended, ("case_id", "block", "wall_s"))
    if isinstance(protocol, Protocol) and protocol.by_time:
        launches = launches[launches["block"] != REFERENCE_BLOCK]  # a reference takes a fixed number of steps
    logged = launches["block"] == EXPLAIN_BLOCK
    medians = launches.assign(logged=logged).groupby(["case_id", "logged"])["wall_s"].median().reset_index()
    return {(case, log): seconds for case, log, seconds in zip(*(medians[name] for name in medians), strict=True)}
