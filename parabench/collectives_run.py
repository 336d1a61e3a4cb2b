"""`parabench collectives`: from a request to lines as nccl-tests prints them, a store and a report."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from parabench.axes import split_values
from parabench.collective_case import OPS, REDUCING, CollectiveCase, CollectiveProtocol, parse_size
from parabench.collectives import canonical, levels_of
from parabench.errors import UsageError
from parabench.interrupt import STOPPED
from parabench.machine import Machine, this_machine
from parabench.nccl_names import NCCL_ALGORITHMS, NCCL_PREFIX, is_nccls
from parabench.opened import REPORT_NAME, STORE_NAME, Opened, begin_session, check_writable, resume, store_in
from parabench.plan import Plan, Skipped
from parabench.record import Launch, check_label
from parabench.rules import check_algorithm, check_backend, refusal
from parabench.session import CollectiveWalk, LaunchOf, Progress
from parabench.settle import nodes_of, settle_device
from parabench.store import load
from parabench.walking import walk_session
from parabench.whole_file import is_special, write_whole

NAME = "collectives"
QUESTION = "Which algorithm moves data fastest here, at which size?"
OWN = ("native", "ring", "tree", "halving_doubling", "parameter_server", "two_level")

# Every line that is no result begins so: what reads nccl-tests' output passes over it.
COMMENT = "# "

CollectivePlan = Plan[CollectiveCase, CollectiveProtocol]
CollectiveOpened = Opened[CollectiveCase, CollectiveProtocol]
CollectiveLaunch = LaunchOf[CollectiveCase, CollectiveProtocol]


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
    launches: int | None = None
    iterations: int | None = None
    warmup: int | None = None
    deadline: float | None = None
    seed: int | None = None
    label: str | None = None
    json_file: Path | None = None
    resume: bool = False

    def plans(self) -> list[str]:
        """The options given that decide what is measured."""
        free = ("argv", "out", "json_file", "resume")
        return [name for name in self.__slots__ if name not in free and getattr(self, name) is not None]


def run_collectives(request: CollectivesRequest, console: Console, launch: CollectiveLaunch | None = None) -> int:
    """Run the request and return the exit code; `launch` stands in for real processes in tests.

    Raises UsageError before anything is launched or recorded.
    """
    machine = this_machine()
    if request.label is not None:
        check_label(request.label)
    path = request.out / STORE_NAME
    # A bare --resume follows the stored plan, whatever it is.
    plan = plan_collectives(request, machine) if request.plans() or not request.resume else None
    if request.resume and not path.is_file():
        raise UsageError(f"{path} does not exist, so it holds no session to resume; run without --resume")
    if request.json_file is not None:
        _check_json(request.json_file, request.out)
    with store_in(request.out) as store:
        opened: CollectiveOpened
        if plan is None or request.resume:
            opened = resume(store, plan, NAME)
        else:
            opened = begin_session(
                store, plan, machine, label=request.label, suite=NAME, question=QUESTION, argv=request.argv
            )

        def walk(keep: Callable[[Launch], None], progress: Progress) -> CollectiveWalk:
            return CollectiveWalk(
                plan=opened.plan,
                launch=launch if launch is not None else _real_launch(),
                keep=keep,
                progress=progress,
                done=opened.done,
            )

        code = walk_session(store, opened, console, walk, COMMENT)
    if code != STOPPED:
        conclude(path, opened.session_id, console, request.json_file)
    return code


def plan_collectives(request: CollectivesRequest, machine: Machine) -> CollectivePlan:
    """Expand, check and sort out. Raises UsageError for what is wrong anywhere, for what this machine lacks, and when
    nothing is left to run."""
    protocol = CollectiveProtocol(
        **_given(
            launches=request.launches,
            iterations=request.iterations,
            warmup=request.warmup,
            deadline_s=request.deadline,
        )
    )
    cases: dict[CollectiveCase, None] = {}
    skipped: dict[Skipped[CollectiveCase], None] = {}
    for case in _cases(request, machine):
        check_algorithm(case.algorithm, case.ranks_per_node)
        check_backend(case)
        reason = refusal(case, machine)
        if reason is not None:
            raise UsageError(reason)
        reason = _unpinned(case)
        if reason is None:
            cases[case] = None
        else:
            skipped[Skipped(case, reason)] = None
    if not cases:
        raise UsageError(f"nothing to run; {next(iter(skipped)).reason}")
    return Plan(cases=tuple(cases), skipped=tuple(skipped), protocol=protocol, seed=request.seed or 0)


def _cases(request: CollectivesRequest, machine: Machine) -> Iterator[CollectiveCase]:
    device = settle_device(request.device or "auto", request.backend or "auto", machine)
    ops = _values(request.op, "op") if request.op is not None else list(OPS)
    sizes = [_rank_count(text) for text in _values(request.world_size, "world-size")] if request.world_size else []
    if not sizes:
        sizes = [max(2, len(machine.gpus))] if device["device"] == "cuda" else [2]
    if request.ranks_per_node is not None and request.ranks_per_node < 1:
        raise UsageError(f"ranks_per_node is {request.ranks_per_node}; give 1 or more, a divisor of the world size")
    common = device | _given(
        min_bytes=parse_size(request.min_size) if request.min_size is not None else None,
        max_bytes=parse_size(request.max_size) if request.max_size is not None else None,
        factor=request.factor,
        dtype=request.dtype,
        threads=request.threads,
    )
    for size, op in itertools.product(sizes, ops):
        for algorithm in _algorithms(request, size):
            redop = (request.redop or "sum") if op in REDUCING else "none"
            two = levels_of(algorithm) is not None
            case = CollectiveCase(op=op, algorithm=algorithm, world_size=size, redop=redop, **common)
            yield replace(case, ranks_per_node=(request.ranks_per_node or nodes_of(size)) if two else None)


def _algorithms(request: CollectivesRequest, world_size: int) -> list[str]:
    """Those that were asked for, or all of ours; two_level only where there can be nodes."""
    if request.algorithm is not None:
        return list(dict.fromkeys(canonical(name) for name in _values(request.algorithm, "algorithm")))
    nodes = request.ranks_per_node is not None or nodes_of(world_size) > 1
    return [name for name in OWN if name != "two_level" or nodes]


def _unpinned(case: CollectiveCase) -> str | None:
    """Why an algorithm of NCCL's is not run: without the operation it would only be NCCL's own choice again."""
    if not is_nccls(case.algorithm):
        return None
    ops = NCCL_ALGORITHMS[case.algorithm.removeprefix(NCCL_PREFIX)]
    return None if case.op.replace("_", "") in ops else f"NCCL has no {case.op} by {case.algorithm}; native is its own"


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


def _real_launch() -> CollectiveLaunch:
    from parabench.collective_launcher import launch_collective
    from parabench.ranks import start_launching

    start_launching()
    return launch_collective


def conclude(path: Path, session_id: int, console: Console, json_file: Path | None) -> None:
    """Print the tables, write report and JSON, and say what is fastest and where everything is."""
    from parabench.analysis.collectives.crossover import bus_answers
    from parabench.analysis.collectives.nccl_tests import results_json, table_lines
    from parabench.analysis.session import select_session
    from parabench.report import write_report

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    results = load(path)
    session = select_session(results, session_id)
    for line in table_lines(results, session):
        say(line)
    report = write_report(results, path.with_name(REPORT_NAME), str(session_id))
    for answer in bus_answers(results, session_id):
        say(COMMENT + answer.sentence())
    say(f"{COMMENT}store:  {path}")
    say(f"{COMMENT}report: {report}")
    if json_file is not None:
        text = json.dumps(results_json(results, session), indent=2, allow_nan=False) + "\n"
        write_whole(json_file, text, "results file", "give another file for --json")
        say(f"{COMMENT}json:   {json_file}")
