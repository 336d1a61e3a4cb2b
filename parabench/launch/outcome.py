"""How a launch ended, and its first cause: over all nodes, of which the others' ends are only the echo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.launch.context import DEAD_AFTER_S, LOST
from parabench.launch.hang import in_words, missing
from parabench.launch.node import NodeResult, handed_over
from parabench.store.record import Failure, Status


def reached(marks: npt.NDArray[np.float64]) -> int:
    """How many moments of its way a rank came to; those that it skipped count."""
    came = np.flatnonzero(~np.isnan(marks))
    return int(came[-1]) + 1 if len(came) else 0


def diagnose(
    parts: Sequence[NodeResult], where: Callable[[int], str], deadline_s: float, lost: str | None = None
) -> tuple[Status, Failure | None]:
    """The status of a launch and, unless it is ok, its first cause. `lost` tells of a node that is gone."""
    if lost is not None:
        return Status.CRASHED, Failure(lost)
    if all(part.ended.ok for part in parts):
        return Status.OK, None
    if any(part.ended.hung for part in parts):
        return Status.HUNG, _hang(parts, where, deadline_s)
    results = {result["rank"]: result for part in parts for result in part.results}
    for part in parts:
        rank = part.ended.rank
        # A rank that was killed or vanished left no error; its peers' are only the echo.
        if rank is not None and "error" not in results[rank]:
            signal = part.ended.signal
            how = f"by {signal}" if signal else "without a trace"
            hint = " (the kernel's out-of-memory killer does this too)" if signal == "SIGKILL" else ""
            message = f"ended {how}{hint}{_on(part, parts)}"
            return Status.CRASHED, Failure(message, rank, signal, part.tails[rank - part.first_rank])
    for part in parts:
        if part.gone:
            message = f"ended without a trace{_on(part, parts)}"
            return Status.CRASHED, Failure(message, part.gone[0], None, part.tails[part.gone[0] - part.first_rank])
        if part.ended.told == LOST and part.node:
            message = (
                f"node {part.node} ({part.host}) had no answer from node 0 for {DEAD_AFTER_S:g} s, and ended its ranks"
            )
            return Status.CRASHED, Failure(message)
    # Errors of several nodes have no clock in common; those of a node that was told to end are echoes.
    causes = [part for part in parts if part.ended.told is None and any("error" in each for each in part.results)]
    errors = [(part, each) for part in causes or parts for each in part.results if "error" in each]
    if not errors:
        told = next((part.ended.told for part in parts if part.ended.told), None)
        return Status.CRASHED, Failure(f"every node ended its ranks, told that the launch was {told}")
    part, first = min(errors, key=lambda found: _moment(*found))
    error = first["error"]
    status = Status.OOM if error["oom"] else Status.FAILED
    return status, Failure(error["message"] + _on(part, parts), first["rank"], None, error["traceback"])


def _moment(part: NodeResult, result: dict[str, Any]) -> tuple[bool, float]:
    """When it failed, on the clock of its node; that another rank's end ended it, it says itself."""
    message = result["error"]["message"]
    return any(echo in message for echo in ECHOES), result["error"]["at"] - part.began_s


# What gloo, NCCL and the store say in a rank whose peer is gone.
ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")


def _on(part: NodeResult, parts: Sequence[NodeResult]) -> str:
    return f" on node {part.node} ({part.host})" if len(parts) > 1 else ""


def _hang(parts: Sequence[NodeResult], where: Callable[[int], str], deadline_s: float) -> Failure:
    """Whoever came least far is what the others waited for; a rank that left its result came to the end.

    On CUDA that is where the device came to, as far as it is known: the host may have enqueued all the rest. Where one
    rank alone has not called a collective that others are in, that rank it is.
    """
    answers = {
        rank: answer
        for part in parts
        for rank, answer in zip(part.ranks, part.answers or [{}] * len(part.results), strict=True)
    }
    results = [result for part in parts for result in part.results]
    marks = [each for part in parts for each in part.marks]
    tails = [tail for part in parts for tail in part.tails or [""] * len(part.results)]
    stacked = {rank for part in parts for rank in part.stacked}
    # Of devices that came equally far the one is behind whose host has enqueued least.
    hosts = [answer.get("enqueued", 0) for answer in answers.values()]
    progress = [(reached(m), host, handed_over(r)) for m, host, r in zip(marks, hosts, results, strict=True)]
    least = [rank for rank, at in enumerate(progress) if at == min(progress)]
    # Among equals, the one that could not write its stack down when it was asked to is stopped.
    silent = [rank for rank in least if rank not in stacked]
    absent = next(iter(missing(answers)), None)
    if len(silent) == 1:
        least = silent
    elif absent and len(absent.absent) == 1:
        least = list(absent.absent)
    far = where(progress[least[0]][0])
    if len(least) == 1:
        rank = least[0]
        message = f"it came {'least far, ' if progress[rank] == min(progress) else ''}{far}"
        if (enqueued := answers[rank].get("enqueued")) is not None:
            message += f" (its device; its host had enqueued {where(enqueued)})"
        message += next(_on(part, parts) for part in parts if rank in part.ranks)
    else:
        rank, message = None, f"{len(least)} ranks came equally far, {far}; their stacks say where each waits"
    if absent:
        message += f"; {absent}"
    stacks = [f"rank {r}: {in_words(answers[r])}".rstrip(": ") + f":\n{tail}" for r, tail in enumerate(tails)]
    return Failure(f"no end after {deadline_s:g} s; {message}", rank=rank, traceback="\n".join(stacks))
