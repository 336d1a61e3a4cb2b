"""`parabench collectives`: from a request to lines as nccl-tests prints them, a store and a report."""

from __future__ import annotations

import itertools
import json
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from parabench.cluster.entrance import dismiss, led, place_in
from parabench.cluster.fingerprint import own_names
from parabench.cluster.topology import ONE_MACHINE, LauncherFlags, topology_of
from parabench.collectives import ALGORITHMS, canonical, levels_of
from parabench.errors import UsageError
from parabench.files import is_special, write_whole
from parabench.machine import accelerator
from parabench.machine.machine import Machine, this_machine
from parabench.plan.collective_case import (
    ALIGNMENT_BYTES,
    IN_PLACE_ONLY,
    OPS,
    REDUCING,
    CollectiveCase,
    parse_size,
    size_text,
)
from parabench.plan.collective_options import OPTIONS, check_captured, protocol_of
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.fields import split_values
from parabench.plan.nccl_pins import unpinned
from parabench.plan.plan import Plan, Skipped
from parabench.plan.resolve import default_ranks_per_node, resolve_device
from parabench.plan.validate import check_algorithm, check_backend, check_nodes, exceeds_machine
from parabench.session.links import measure_links
from parabench.session.progress import outcome, say
from parabench.session.resume import (
    REPORT_NAME,
    Opened,
    begin_session,
    check_nodes_of,
    check_writable,
    resume,
    resume_command,
    store_in,
)
from parabench.session.runner import CollectiveWalk, Executor, Progress, executor_of
from parabench.session.walking import concluding, walk_session
from parabench.signals import STOPPED
from parabench.store.record import MIB, Launch, check_label
from parabench.store.store import STORE_NAME, load

if TYPE_CHECKING:  # it brings torch
    from parabench.cluster.coordinator import Coordinator

NAME = "collectives"
QUESTION = "Which algorithm moves data fastest here, at which size?"
OWN = ("native", "ring", "tree", "halving_doubling", "parameter_server", "two_level")

# The largest size unless one is given: NVLink carries its most from 512 MiB on.
MOST = {"cpu": 64 * MIB, accelerator.TYPE: 1024 * MIB}

# Every line that is no result begins so: what reads nccl-tests' output passes over it.
COMMENT = "# "

CollectivePlan = Plan[CollectiveCase, CollectiveProtocol]
CollectiveOpened = Opened[CollectiveCase, CollectiveProtocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesRequest:
    """What the user asked for, unchecked, as text where the command line has text. None leaves a value to us."""

    argv: list[str]
    out: Path
    op: str | None = None
    algorithm: str | None = None
    min_size: str | None = None
    max_size: str | None = None
    factor: int | None = None
    world_size: str | None = None
    ranks_per_node: int | None = None
    dtype: str | None = None
    redop: str | None = None
    device: str | None = None
    backend: str | None = None
    threads: int | None = None
    mode: str | None = None
    graph: bool | None = None
    launches: int | None = None
    iterations: int | None = None
    batches: int | None = None
    measure_s: float | None = None
    warmup: int | None = None
    deadline: float | None = None
    seed: int | None = None
    label: str | None = None
    json_file: Path | None = None
    resume: bool = False
    links: bool = False
    cluster: LauncherFlags = ONE_MACHINE

    def plans(self) -> list[str]:
        """The options given that decide what is measured."""
        free = ("argv", "out", "label", "json_file", "resume", "links", "cluster")
        return [name for name in self.__slots__ if name not in free and getattr(self, name) is not None]

    def measured(self) -> list[str]:
        """These options as they are typed, more or less: on several nodes all must have them alike."""
        return [f"{name}={getattr(self, name)}" for name in self.plans()] + ["resume"] * self.resume


def run_collectives(request: CollectivesRequest, console: Console, launch: Executor | None = None) -> int:
    """Run the request and return the exit code; `launch` stands in for real processes in tests.

    Raises UsageError before anything is launched or recorded.
    """
    machine = this_machine()
    site = topology_of(request.cluster, os.environ, machine)
    if site is not None:
        machine = replace(machine, nodes=site.nodes, ranks_per_node=site.ranks_per_node)
    if request.label is not None:
        check_label(request.label)
    # A bare --resume follows the stored plan, whatever it is.
    plan = plan_collectives(request, machine) if request.plans() or not request.resume else None
    crew = place_in(site, request.measured(), None, machine, request.out, partial(say, console))
    if isinstance(crew, int):
        return crew
    code, session_id = led(crew, partial(_lead, request, plan, machine, crew, console, launch), partial(say, console))
    if code == STOPPED:
        return code
    end = partial(conclude, request.out / STORE_NAME, session_id, console, request.json_file)
    return concluding(code, request.out, end, partial(say, console))


def _lead(
    request: CollectivesRequest,
    plan: CollectivePlan | None,
    machine: Machine,
    crew: Coordinator | None,
    console: Console,
    launch: Executor | None,
) -> tuple[int, int]:
    """Run the request here, where the store is kept, with the `crew` of other nodes: the exit code, and the session."""
    path = request.out / STORE_NAME
    if request.resume and not path.is_file():
        raise UsageError(f"{path} does not exist, so it holds no session to resume; run without --resume")
    if request.json_file is not None:
        _check_json(request.json_file, request.out)
    with store_in(request.out) as store:
        opened: CollectiveOpened | None = None
        if plan is None or request.resume:
            opened = resume(store, plan, NAME, label=request.label)
            check_nodes_of(opened.plan, machine)
        cases = opened.plan.cases if opened else plan.cases if plan else ()
        if crew is not None:
            crew.assemble(own_names(cases, {"algorithm": ALGORITHMS}))
        if opened is None:
            assert plan is not None
            opened = begin_session(
                store, plan, machine, label=request.label, suite=NAME, question=QUESTION, argv=request.argv,
                nodes=crew.environments() if crew else (),
            )  # fmt: skip
        session = opened
        again = resume_command(store.path, NAME, *crew.site.words) if crew else None

        def walk(keep: Callable[[Launch], None], progress: Progress) -> CollectiveWalk:
            here = launch or executor_of(crew)
            if request.links:
                measure_links(store, session, machine, lambda line: say(console, COMMENT + line), here)
            return CollectiveWalk(
                plan=session.plan,
                launch=here,
                keep=crew.keeping(keep, outcome) if crew else keep,
                progress=progress,
                done=session.done,
            )

        code = walk_session(store, opened, console, walk, COMMENT, go_on=again)
    dismiss(crew, code)
    return code, opened.session_id


def plan_collectives(request: CollectivesRequest, machine: Machine) -> CollectivePlan:
    """Expand, check and sort out. Raises UsageError for what is wrong anywhere, for what this machine lacks, and when
    nothing is left to run."""
    protocol = protocol_of(
        **{name: value for name in OPTIONS if (value := getattr(request, name)) is not None},
        deadline_s=request.deadline,
    )
    cases: dict[CollectiveCase, None] = {}
    skipped: dict[Skipped[CollectiveCase], None] = {}
    for case in _cases(request, machine):
        check_algorithm(case.algorithm, case.ranks_per_node)
        check_backend(case)
        check_nodes(case)
        reason = exceeds_machine(case, machine)
        if reason is not None:
            raise UsageError(reason)
        if protocol.graph:
            check_captured(case)
        reason = unpinned(case, machine.nccl)
        if reason is None:
            cases[case] = None
        else:
            skipped[Skipped(case, reason)] = None
    if not cases:
        raise UsageError(f"nothing to run; {next(iter(skipped)).reason}")
    return Plan(cases=tuple(cases), skipped=tuple(skipped), protocol=protocol, seed=request.seed or 0)


def _cases(request: CollectivesRequest, machine: Machine) -> Iterator[CollectiveCase]:
    device = resolve_device(request.device or "auto", request.backend or "auto", machine)
    ops = _values(request.op, "op") if request.op is not None else list(OPS)
    sizes = [_rank_count(text) for text in _values(request.world_size, "world-size")] if request.world_size else []
    if not sizes and machine.ranks_per_node is not None:
        sizes = [machine.nodes * machine.ranks_per_node]
    if not sizes:
        sizes = [max(2, len(machine.gpus))] if device["device"] == accelerator.TYPE else [2]
    if request.ranks_per_node is not None and request.ranks_per_node < 1:
        raise UsageError(f"ranks_per_node is {request.ranks_per_node}; give 1 or more, a divisor of the world size")
    common = device | _given(
        min_bytes=parse_size(request.min_size) if request.min_size is not None else None,
        max_bytes=parse_size(request.max_size) if request.max_size is not None else MOST[device["device"]],
        factor=request.factor,
        dtype=request.dtype,
        threads=request.threads,
    )
    ladder: dict[str, Any] = {field.name: field.default for field in fields(CollectiveCase)} | common
    for size, op in itertools.product(sizes, ops):
        # What every rank has a part of; unsaid, the ladder begins at its first step that has room for them.
        needed = 1 if op in IN_PLACE_ONLY else size * ALIGNMENT_BYTES
        for name, given in (("--min", request.min_size), ("--max", request.max_size)):
            if given is not None and parse_size(given) < needed:
                raise UsageError(
                    f"{name} {given} is less than {op} among {size} ranks can split; use {size_text(needed)} or more"
                )
        if request.min_size is None and ladder["factor"] > 1:
            steps = itertools.accumulate(itertools.repeat(ladder["factor"]), operator.mul, initial=ladder["min_bytes"])
            common["min_bytes"] = min(next(step for step in steps if step >= needed), ladder["max_bytes"])
        for algorithm in _algorithms(request, size):
            redop = (request.redop or "sum") if op in REDUCING else "none"
            two = levels_of(algorithm) is not None
            nodes = machine.nodes_for(size)
            case = CollectiveCase(op=op, algorithm=algorithm, world_size=size, nodes=nodes, redop=redop, **common)
            per_node = request.ranks_per_node or (size // nodes if machine.nodes > 1 else default_ranks_per_node(size))
            yield replace(case, ranks_per_node=per_node if two else None)


def _algorithms(request: CollectivesRequest, world_size: int) -> list[str]:
    """Those that were asked for, or all of ours; two_level only where there can be nodes. In graphs NCCL's alone."""
    if request.algorithm is not None:
        return list(dict.fromkeys(canonical(name) for name in _values(request.algorithm, "algorithm")))
    if request.graph:
        return ["native"]
    nodes = request.ranks_per_node is not None or default_ranks_per_node(world_size) > 1
    return [name for name in OWN if name != "two_level" or nodes]


def _values(text: str, name: str) -> list[str]:
    """The values between commas; those within parentheses separate nothing."""
    values = split_values(text)
    if "" in values:
        raise UsageError(f"--{name} {text!r}: a value is empty; give names separated by commas")
    return values


def _rank_count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--world-size {text!r} is not a number of ranks; give 2, or 2,4")
    return int(text)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _check_json(path: Path, out: Path) -> None:
    """Raise UsageError when the file could not be written at the end of a long run, or is one of the run's own."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file for --json")
    own = [out / REPORT_NAME, *(out / f"{STORE_NAME}{end}" for end in ("", "-wal", "-shm", "-journal"))]
    same = (path.exists() and each.exists() and path.samefile(each) for each in own)
    if path.resolve() in [each.resolve() for each in own] or any(same):
        raise UsageError(f"{path} is this run's own store or report; give another file for --json")
    if not is_special(path):
        check_writable(path.resolve().parent, "folder", "--json")
    elif not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written; give another file for --json")


def conclude(path: Path, session_id: int, console: Console, json_file: Path | None) -> None:
    """Print the tables, write report and JSON, and say what is fastest and where everything is."""
    from parabench.analysis.collectives.crossover import bus_answers
    from parabench.analysis.collectives.nccl_tests import results_json, table_lines
    from parabench.analysis.session import select_session
    from parabench.report.build import write_report

    tell = partial(say, console)
    results = load(path)
    session = select_session(results, session_id)
    for line in table_lines(results, session):
        tell(line)
    report = write_report(results, path.with_name(REPORT_NAME), str(session_id))
    for answer in bus_answers(results, session_id):
        tell(COMMENT + answer.sentence())
    tell(f"{COMMENT}store:  {path}")
    tell(f"{COMMENT}report: {report}")
    if json_file is not None:
        text = json.dumps(results_json(results, session), indent=2, allow_nan=False) + "\n"
        write_whole(json_file, text, "results file", "give another file for --json")
        tell(f"{COMMENT}json:   {json_file}")
