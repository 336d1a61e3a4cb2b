"""Find the status of a launch, and the first cause of a failure, which makes other ranks fail too (echoes).

For a hang, the flight recorders of the ranks show the collective that did not finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parabench.errors import DEAD_AFTER_S
from parabench.launch.processes import FATAL
from parabench.launch.rendezvous import HUNG, LOST
from parabench.launch.results import Marks, NodeResult, RankError
from parabench.launch.spec import LaunchSpec
from parabench.store.record import AnyCase, Failure, Launch, Status

# Messages of gloo, NCCL and the rendezvous store in a rank whose peer is gone.
ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")

# What gloo writes if ranks bring different sizes to one collective, and its likely cause: FSDP2 reduces only gradients
# that exist.
SIZES_DIFFER = "Received data size doesn't match expected size"
WHY_SIZES_DIFFER = (
    "ranks called a collective with different sizes (gloo); under FSDP, a parameter without a gradient on one rank "
    "does this: use --set strategy=ddp --set find_unused_parameters=on"
)


def diagnose(
    nodes: Sequence[NodeResult], position: Callable[[int], str], deadline_s: float
) -> tuple[Status, Failure | None]:
    """Return the status of a launch and the first cause of its failure (None if it is ok).

    `position(n)` describes the position of a rank that has written n marks.
    """
    lost = next((node.lost for node in nodes if node.lost), None)
    if lost is not None:
        return Status.CRASHED, Failure(lost)
    if all(node.outcome.ok for node in nodes):
        return Status.OK, None
    # A node whose ranks had all ended at the deadline is not hung: it only ended the others. A rank that waits until
    # the deadline for a rank that has left is not hung either.
    vanished = next((_without_trace(node, node.vanished[0], nodes) for node in nodes if node.vanished), None)
    if any(node.outcome.hung or node.outcome.aborted_by == HUNG for node in nodes):
        return vanished or (Status.HUNG, _hang(nodes, position, deadline_s))
    failed = {report.rank: report.error for node in nodes for report in node.reports}
    for node in nodes:
        rank = node.outcome.rank
        # A rank that was killed or vanished left no error; the errors of its peers are only echoes.
        if rank is not None and failed[rank] is None:
            signal = node.outcome.signal
            how = f"by {signal}" if signal else "without a trace"
            hint = " (the kernel's out-of-memory killer does this too)" if signal == "SIGKILL" else ""
            tail = node.tails[rank - node.first_rank]
            message = f"ended {how}{hint}{_on(node, nodes)}{_reason(tail)}"
            return Status.CRASHED, Failure(message, rank, signal, tail)
    if vanished:
        return vanished
    for node in nodes:
        if node.outcome.aborted_by == LOST and node.node:
            message = (
                f"node {node.node} ({node.host}) had no answer from node 0 for {DEAD_AFTER_S:g} s, and ended its ranks"
            )
            return Status.CRASHED, Failure(message)
    errors = [(node, report.rank, report.error) for node in nodes for report in node.reports if report.error]
    # Errors of several nodes have no clock in common; errors of a node that another one ended are echoes.
    causes = [each for each in errors if each[0].outcome.aborted_by is None]
    if not errors:
        why = next((node.outcome.aborted_by for node in nodes if node.outcome.aborted_by), None)
        return Status.CRASHED, Failure(f"every node ended its ranks ({why})")
    # First causes before echoes, then by time.
    node, rank, error = min(causes or errors, key=lambda found: (is_echo(found[2]), found[2].at - found[0].began_s))
    alive = [each for each in nodes if each.outcome.aborted_by is None]
    silent = [(each, report.rank) for each in alive for report in each.reports if not report.reported]
    # torch elastic accepts exit code 0. If several ranks left like this, some may have been ended because of another.
    if is_echo(error) and len(silent) > 1:
        message = f"one of {_ranks([each for _, each in silent])} ended without a trace"
        return Status.CRASHED, Failure(message)
    if is_echo(error) and silent:
        return _without_trace(*silent[0], nodes)
    status = Status.OOM if error.oom else Status.FAILED
    return status, Failure(error.message + _on(node, nodes), rank, None, error.traceback)


def _reason(tail: str) -> str:
    """Return the last line of C++ before the process aborted, as the end of a sentence; "" if there is none."""
    before, fatal, _ = tail.partition(f"{FATAL}Aborted")
    lines = [line.strip() for line in before.splitlines() if line.strip()]
    if not fatal or not lines:
        return ""
    return f": {WHY_SIZES_DIFFER if SIZES_DIFFER in lines[-1] else lines[-1].removeprefix('what():').strip()}"


def _without_trace(node: NodeResult, rank: int, nodes: Sequence[NodeResult]) -> tuple[Status, Failure]:
    """Return the failure of a rank that left no report."""
    failure = Failure(f"ended without a trace{_on(node, nodes)}", rank, None, node.tails[rank - node.first_rank])
    return Status.CRASHED, failure


def is_echo(error: RankError) -> bool:
    """Return whether a rank failed because another one was gone."""
    return any(echo in error.message for echo in ECHOES)


def _on(node: NodeResult, nodes: Sequence[NodeResult]) -> str:
    return f" on node {node.node} ({node.host})" if len(nodes) > 1 else ""


def reached(marks: Marks) -> int:
    """Return the number of marks up to the last one that a rank has written, including skipped ones."""
    came = np.flatnonzero(~np.isnan(marks))
    return int(came[-1]) + 1 if len(came) else 0


def culprit(
    launch: Launch, marks: Sequence[Marks], columns: int, owners: Sequence[int], sizes: Sequence[int]
) -> int | None:
    """Return the index of the case that was running when a shared launch failed; None if it is unknown.

    The marks of the failed rank show it, or else of the rank with the least progress. `owners` has the index of the
    case of each row of marks, and `sizes` the number of ranks of each case.
    """
    rank = launch.failure.rank if launch.failure else None
    if rank is None:
        rank = min(range(len(marks)), key=lambda each: reached(marks[each]))
    came = reached(marks[rank])
    row = came // columns
    return owners[row] if came and row < len(owners) and rank < sizes[owners[row]] else None


def arms_of(
    launch: Launch, spec: LaunchSpec, marks: Sequence[Marks], columns: int, owners: Sequence[int]
) -> Iterator[tuple[int, Launch]]:
    """Yield (index of the case, launch) for each case of a launch that several cases shared.

    If the launch failed, only the case that was running gets a launch. `owners` has the index of the case of each row
    of marks.
    """
    places: Sequence[int] = range(len(spec.cases))
    if launch.status is not Status.OK:
        failed = culprit(launch, marks, columns, owners, [case.world_size for case in spec.cases])
        places = [] if failed is None else [failed]
    yield from shares_of(launch, spec.cases, places)


def shares_of(launch: Launch, cases: Sequence[AnyCase], places: Sequence[int]) -> Iterator[tuple[int, Launch]]:
    """Yield (index of the case, launch) for the cases with the indices `places`, from a launch that all cases shared.

    Each has a copy of the shared facts and an equal share of the time. One case with the most ranks gets the readings.
    """
    reader = max(places, key=lambda place: cases[place].world_size, default=None)
    for place in places:
        yield (
            place,
            replace(
                launch,
                case=cases[place],
                wall_s=launch.wall_s / len(cases),
                facts=dict(launch.facts),
                samples=[],
                collectives=[],
                arms=[],
                findings=list(launch.findings),
                device_samples=launch.device_samples if place == reader else [],
                host_samples=launch.host_samples if place == reader else [],
            ),
        )


def _hang(nodes: Sequence[NodeResult], position: Callable[[int], str], deadline_s: float) -> Failure:
    """Return the failure of a launch that hangs, with the rank that probably caused it.

    This rank has not called a collective that others wait in, or else has the least progress (on CUDA, of the device).
    """
    answers = {
        rank: answer
        for node in nodes
        for rank, answer in zip(node.ranks, node.answers or [{}] * len(node.reports), strict=True)
    }
    reports = [report for node in nodes for report in node.reports]
    marks = [each for node in nodes for each in node.marks]
    tails = [tail for node in nodes for tail in node.tails or [""] * len(node.reports)]
    stacked = {rank for node in nodes for rank in node.stacked}
    # If the devices have the same progress, the rank whose host has enqueued least is behind.
    hosts = [answer.get("enqueued", 0) for answer in answers.values()]
    progress = [(reached(m), host, r.reported) for m, host, r in zip(marks, hosts, reports, strict=True)]
    least = [rank for rank, at in enumerate(progress) if at == min(progress)]
    # Among equals, a rank that did not write its stack when the driver requested it is a stopped process.
    silent = [rank for rank in least if rank not in stacked]
    absent, missing = missing_call(answers)
    if len(silent) == 1:
        least = silent
    elif len(absent) == 1:
        least = absent
    far = position(progress[least[0]][0])
    if len(least) == 1:
        rank = least[0]
        message = f"it came {'least far, ' if progress[rank] == min(progress) else ''}{far}"
        if (enqueued := answers[rank].get("enqueued")) is not None:
            message += f" (its device; its host had enqueued {position(enqueued)})"
        message += next(_on(node, nodes) for node in nodes if rank in node.ranks)
    else:
        rank, message = None, f"{len(least)} ranks came equally far, {far}; see their stacks"
    if missing:
        message += f"; {missing}"
    stacks = [f"rank {r}: {pending_calls(answers[r])}".rstrip(": ") + f":\n{tail}" for r, tail in enumerate(tails)]
    return Failure(f"no end after {deadline_s:g} s; {message}", rank=rank, traceback="\n".join(stacks))


def missing_call(answers: Mapping[int, Mapping[str, Any]]) -> tuple[list[int], str]:
    """Return (ranks, text): the ranks that have not called a collective that others wait in, and a description.

    Both are empty without such a collective. With several groups, the one with the fewest absent ranks counts. A
    rank without an answer (`launch.hang`) is not absent, because its calls are unknown.
    """
    found = []
    groups = {
        (name, tuple(group["ranks"])): None
        for each in answers.values()
        for name, group in each.get("groups", {}).items()
    }
    for name, ranks in groups:
        calls: dict[int, Mapping[str, Any]] = {}
        for rank in ranks:
            if "groups" in answers.get(rank, {}):
                own = answers[rank]["groups"].get(name, {})
                # A rank that called none of the group's collectives may have another group by that name.
                calls[rank] = own if own.get("ranks") == list(ranks) else {"last": 0, "pending": []}
        number = min((each["pending"][0][0] for each in calls.values() if each["pending"]), default=None)
        if number is None:
            continue
        waiting = {rank: op for rank, each in calls.items() for at, op in each["pending"] if at == number}
        absent = [rank for rank, each in calls.items() if each["last"] < number]
        call = f"{next(iter(waiting.values()))} number {number} of the group of {_ranks(ranks)}"
        text = (
            f"{_ranks(absent)} {'has' if len(absent) == 1 else 'have'} not called {call}, in which "
            f"{_ranks(sorted(waiting))} {'waits' if len(waiting) == 1 else 'wait'}"
        )
        if absent:
            found.append((len(absent), ranks, absent, text))
    return min(found)[2:] if found else ([], "")


def pending_calls(answer: Mapping[str, Any]) -> str:
    """Return the unfinished calls in the flight recorder of a rank, as one line; "" if there are none."""
    texts = []
    for group in answer.get("groups", {}).values():
        pending = [f"{operation} {number}" for number, operation in group["pending"]] + list(group["messages"])
        if pending:
            texts.append(f"{', '.join(pending)} of the group of {_ranks(group['ranks'])}")
    return "not over: " + "; ".join(texts) if texts else ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
