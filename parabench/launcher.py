"""launch(case) -> Launch: one fresh group of processes, and the whole truth about how it ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.case import Case, Protocol
from parabench.family import entry_of
from parabench.nccl_names import nccl_environment
from parabench.probes import nccl_log
from parabench.probes.devices import Devices
from parabench.probes.host import Host
from parabench.probes.pids import RankPids
from parabench.probes.replicas import replicas_apart
from parabench.probes.sampler import Sampler
from parabench.probes.steps import MARKS, read_marks
from parabench.ranks import Ended, log_tail, run_ranks
from parabench.record import AnyCase, Failure, Launch, Status, utc_now
from parabench.rows import collectives, phase_windows, phases_of, samples, spans, told
from parabench.scratch import launch_folder
from parabench.worker import Job, run

# All traffic of a single-node run stays on loopback.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

# What faulthandler writes above each thread's stack.
STACK_HEAD = "(most recent call first)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What one kind of launch does its own way.

    Each rank calls `entry(job(folder, timeout_s, environment))` and marks its way in memory that outlives it;
    `marks(folder, rank)` are those marks, NaN where it never came, and `where(n)` says in words what n of them mean.
    """

    entry: Callable[[Any], None]
    job: Callable[[Path, float, dict[str, str]], Any]
    marks: Callable[[Path, int], npt.NDArray[np.float64]]
    where: Callable[[int], str]


def launch(case: Case, protocol: Protocol, *, deadline_s: float, traces: Path | None = None) -> Launch:
    """Run `case` once: warm-up, then measured steps. Never raises for what happens inside the ranks.

    `traces` is the folder for the traces that the protocol asks for; the facts name the files. Raises Interrupted when
    the driver is asked to stop.
    """
    steps = protocol.all_steps
    stem = None
    if traces is not None and protocol.traced:
        traces.mkdir(exist_ok=True)
        stem = traces / f"{case.id}-{re.sub('[^0-9TZ]', '', utc_now())}"

    def where(moments: int) -> str:
        step, part = divmod(moments, MARKS)
        return f"to step {step}, part {part}"

    course = Course(
        entry=run,
        job=lambda folder, timeout_s, environment: Job(
            case,
            protocol,
            folder,
            timeout_s,
            environment | (nccl_log.environment(folder) if protocol.explain else {}),
            stem,
        ),
        marks=lambda folder, rank: read_marks(folder / f"marks{rank}.f64", steps),
        where=where,
    )
    size = 1 if entry_of(case.strategy).one_process else case.world_size
    seen, results, marks = observe(case, course, deadline_s, size)
    seen.facts |= replicas_apart(results) | told(results)
    phases = phases_of(protocol)
    seen.facts["phases"] = phase_windows(marks, phases)
    for rank in range(size):
        seen.samples += samples(rank, marks[rank], results[rank], phases)
        seen.spans += spans(rank, marks[rank], results[rank], phases)
        seen.collectives += collectives(rank, results[rank], phases)
    return seen


def observe(
    case: AnyCase, course: Course, deadline_s: float, size: int | None = None
) -> tuple[Launch, list[dict[str, Any]], list[npt.NDArray[np.float64]]]:
    """Run a fresh group of ranks, `size` of them where it is not the case's world size: the launch with what was read
    around it, but without its samples, and every rank's result and marks.

    Its facts tell at which reading of the clock that all processes share its readings' `t_s` is 0.
    """
    started, begin = utc_now(), time.perf_counter()
    ranks = range(case.world_size if size is None else size)
    with ExitStack() as stack:
        folder = stack.enter_context(launch_folder())
        pids = RankPids(folder, len(ranks))
        host, devices = Host(begin, pids), Devices(begin, pids, len(ranks))
        sampler = stack.enter_context(Sampler(begin, [host, devices] if case.device == "cuda" else [host]))
        # The group's own timeout only backs up the deadline, which says more.
        job = course.job(folder, deadline_s + 60, {**LOOPBACK, **nccl_environment(case.algorithm)})
        ended = run_ranks(course.entry, (job,), size=len(ranks), deadline_s=deadline_s, logs=folder / "logs")
        results = [_result(folder, rank) for rank in ranks]
        marks = [course.marks(folder, rank) for rank in ranks]
        status, failure = judge(ended, results, marks, course.where, folder / "logs", deadline_s)
    launched = Launch(
        case=case,
        status=status,
        started_utc=started,
        wall_s=time.perf_counter() - begin,
        failure=failure,
        device_samples=list(devices.samples),
        host_samples=list(host.samples),
        facts=next((r["facts"] for r in results if "facts" in r), {})
        | {"clock": {"began_s": begin}, "sampler": sampler.facts()},
    )
    return launched, results, marks


def reached(marks: npt.NDArray[np.float64]) -> int:
    """How many moments of its way a rank came to; those that it skipped count."""
    came = np.flatnonzero(~np.isnan(marks))
    return int(came[-1]) + 1 if len(came) else 0


def judge(
    ended: Ended,
    results: Sequence[Mapping[str, Any]],
    marks: Sequence[Any],
    where: Callable[[int], str],
    logs: Path,
    deadline_s: float,
) -> tuple[Status, Failure | None]:
    """The status of a launch and, unless it is ok, its first cause."""
    if ended.ok:
        return Status.OK, None
    if ended.hung:
        return Status.HUNG, _hang(results, marks, where, logs, deadline_s)
    rank = ended.rank
    assert rank is not None
    # A rank that was killed or vanished left no error; its peers' are only the echo.
    if "error" not in results[rank]:
        how = f"by {ended.signal}" if ended.signal else "without a trace"
        hint = " (the kernel's out-of-memory killer does this too)" if ended.signal == "SIGKILL" else ""
        return Status.CRASHED, Failure(f"ended {how}{hint}", rank, ended.signal, log_tail(logs, rank))
    first = min((r for r in results if "error" in r), key=lambda r: r["error"]["at"])
    error = first["error"]
    status = Status.OOM if error["oom"] else Status.FAILED
    return status, Failure(error["message"], first["rank"], None, error["traceback"])


def _hang(
    results: Sequence[Mapping[str, Any]],
    marks: Sequence[Any],
    where: Callable[[int], str],
    logs: Path,
    deadline_s: float,
) -> Failure:
    """Whoever came least far is what the others waited for; a rank that left its result came to the end."""
    progress = [(reached(m), len(r) > 1) for m, r in zip(marks, results, strict=True)]
    least = [rank for rank, at in enumerate(progress) if at == min(progress)]
    # Among equals, the one that could not write its stack down when it was asked to is stopped.
    silent = [rank for rank in least if STACK_HEAD not in log_tail(logs, rank, lines=1000)]
    if len(silent) == 1:
        least = silent
    far = where(min(progress)[0])
    if len(least) == 1:
        rank, message = least[0], f"it came least far, {far}"
    else:
        rank, message = None, f"{len(least)} ranks came equally far, {far}; their stacks say where each waits"
    stacks = "\n".join(f"rank {r}:\n{log_tail(logs, r)}" for r in range(len(results)))
    return Failure(f"no end after {deadline_s:g} s; {message}", rank=rank, traceback=stacks)


def _result(folder: Path, rank: int) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text())
    except FileNotFoundError:
        return {"rank": rank}
    return result
