"""Write a folder of recordings to a separate results database, and read it for a report, a comparison or links."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.collectives.bus import good_sizes, measured
from parabench.analysis.numbers import numbers
from parabench.analysis.prediction.links import Row
from parabench.analysis.session import select_sessions
from parabench.errors import UsageError
from parabench.files import replacing
from parabench.imports import Folder, clocks, flight_recorder, joined, kineto, nccl, read_folder
from parabench.imports.joined import MOST_NAMED, ranks_text
from parabench.imports.recording import Recording, distinct, table_together, word
from parabench.machine import accelerator
from parabench.plan.case import UNKNOWN, RecordedCase, line
from parabench.plan.collective_case import CollectiveCase
from parabench.report.build import conclusions, write_report
from parabench.store.record import CollectiveSample, Failure, Finding, Launch, Phase, Sample, Span, Status, utc_now
from parabench.store.results import Results, known_records, load
from parabench.store.store import Store

QUESTION = "What do these traces show?"
LOGS_QUESTION = "How fast are collectives in these logs of nccl-tests?"
_WHOLE = (
    "it has no steps (`ProfilerStep#N`), so the whole trace is one step here; call the profiler's step() after each one"
)
# The columns of calls that are fields of a stored call.
_CALL = (
    "rank", "step", "seq", "op", "group_size", "bytes", "start_s", "duration_s", "phase", "ranks", "dtype", "made_s",
)  # fmt: skip


@contextmanager
def fresh_store(path: Path) -> Iterator[Path]:
    """Yield the path of a new results database, which replaces `path` unless an error ends the block.

    Raises UsageError if `path` has anything but recordings, or cannot be written.
    """
    if path.exists() and (not path.is_file() or path.stat().st_size):
        results = load(path)
        logs = results.listed.loc[results.listed["suite"] == nccl.TESTS, "id"]
        if not {*results.of_kind(RecordedCase.kind), *logs}.issuperset(results.listed["id"]):
            raise UsageError(f"{path} has sessions of other kinds; give -o another name")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = stack.enter_context(replacing(path, 0o644))
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}; give -o another place") from error
        yield part


def record(folder: Folder, path: Path, argv: list[str]) -> None:
    """Write a folder's recordings to the results database at `path` as finished sessions.

    Logs of nccl-tests are a separate session. Raises UsageError for several training runs, or without a usable log.
    """
    logs = [one for one in folder.recordings if one.kind == nccl.TESTS]
    others = [one for one in folder.recordings if one.kind != nccl.TESTS]
    sessions: list[tuple[str, str, dict[str, Any], list[Recording], list[Launch]]] = []
    if logs:
        left_out = dict(folder.damaged)
        launches, timing = nccl.launches_of(logs, left_out)
        launches[0].findings += _left_out(logs, left_out, None)
        plan_of_logs = {"kind": CollectiveCase.kind, "protocol": {"mode": timing, "launches": 1}}
        sessions.append((nccl.TESTS, LOGS_QUESTION, plan_of_logs, logs, launches))
    if others:
        launch = launch_of(replace(folder, recordings=others))
        sessions.append(("recorded", QUESTION, {"kind": RecordedCase.kind}, others, [launch]))
    if len(sessions) == 2:
        # A session with only NCCL's debug messages is less important.
        if all(one.kind == nccl.DEBUG for one in others):
            sessions.reverse()
        first = "Logs of nccl-tests" if sessions[0][0] == nccl.TESTS else "NCCL's debug logs"
        message = f"{first} are session 1 of the page's results database: `parabench report STORE@1` shows them."
        sessions[1][-1][0].findings.append(_leaving_out(message, None))
    with Store.open_or_create(path) as store:
        for suite, question, plan, recordings, launches in sessions:
            plan = {**plan, "cases": [launch.case.to_dict() for launch in launches], "repetitions": 1}
            hosts = distinct(one.host for one in recordings)
            environment: dict[str, Any] = {"host": line(", ".join(hosts))} if hosts else {}
            environment["gpus"] = next((one.gpus for one in recordings if one.gpus), [])
            environment["unknown_versions"] = dict.fromkeys(("torch", "python"), "no file has it")
            session = store.begin_session(
                label=None, suite=suite, question=question, argv=argv, seed=0, plan=plan, environment=environment
            )
            for launch in launches:
                store.append(session, launch)
            store.finish_session(session)


@contextmanager
def results_of(path: Path, argv: list[str]) -> Iterator[Results]:
    """Write a folder's recordings to a temporary results database, and yield its results. Raises UsageError."""
    folder = read_folder(path)
    folder = replace(folder, recordings=[one for one in folder.recordings if one.kind != nccl.TESTS])
    if not folder.recordings:
        raise UsageError(f"{path} has only logs of nccl-tests; compare them with parabench report --from {path}")
    with tempfile.TemporaryDirectory() as made:
        store = Path(made) / "recorded.db"
        record(folder, store, argv)
        yield load(store)


def report_recordings(folder: Path, page: Path, argv: list[str]) -> list[str]:
    """Write the report of a folder of recordings, and its results database next to it. Return the conclusions.

    Raises UsageError, and then writes no file.
    """
    with fresh_store(page.with_suffix(".db")) as part:
        record(read_folder(folder), part, argv)
        results = load(part)
        write_report(results, page)
        return conclusions(results)


def link_rows(logs: Path, backend: str) -> tuple[Row, ...]:
    """Return the measurements in logs of nccl-tests, as rows for fitting links.

    Unknown operations, wrong results, and ranks that do not fill their nodes are left out. Raises UsageError if no row
    is left.
    """
    if backend != accelerator.BACKEND:
        raise UsageError(f"--links-from {logs}: these logs are of NCCL, and the training runs used {backend}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logs.db"
        record(read_folder(logs), path, [])
        results = load(path)
        sessions = select_sessions(results, results.of_kind("collectives"))
        tables = [good_sizes(measured(numbers(results, session))) for session in sessions]
    rows = pd.concat(tables) if tables else pd.DataFrame(columns=["source", "op", "world_size", "nodes"])
    rows = rows[(rows["source"] != "") & (rows["op"] != UNKNOWN) & (rows["world_size"] % rows["nodes"] == 0)]
    if rows.empty:
        raise UsageError(
            f"--links-from {logs} has no log of nccl-tests with a known operation, correct results and equally many "
            "ranks on each node; give such a file"
        )
    groups = rows.groupby(["op", "world_size", "nodes", "dtype", "bytes"], sort=False)
    files = groups["source"].unique()
    if (twice := files[files.map(len) > 1]).size:
        names = " and ".join(twice.iloc[0])
        raise UsageError(f"--links-from {logs}: {names} have the same measurement; name only one")
    seconds: dict[Any, float] = groups["call_s"].mean().to_dict()
    return tuple(Row(op, "native", ranks, nodes, size, s) for (op, ranks, nodes, _, size), s in seconds.items())


def launch_of(folder: Folder) -> Launch:
    """Return a folder's recordings as one launch, and move the times of its traces to one clock.

    Raises UsageError if they cannot be from one training run.
    """
    left_out = dict(folder.damaged)
    all_traces = [one for one in folder.recordings if one.kind == kineto.NAME]
    if len(all_traces) == 1 and all_traces[0].rank is None:
        all_traces[0].rank = 0
        if all_traces[0].world_size != 1:
            all_traces[0].unknown.append("neither the trace nor its name has its rank; it is shown as rank 0")
    found = list(_of_one_run(folder.recordings, left_out))
    traces = [one for one in found if one.kind == kineto.NAME and one.rank is not None]
    dumps = [one for one in found if one.kind == flight_recorder.NAME]
    for one in found:
        if one.kind == kineto.NAME and one.rank is None:
            left_out[one.file] = "neither the trace nor its name has its rank; name it as in rank0.json"
    matched = clocks.matched(table_together(traces))
    ahead_s, one_clock, differ = clocks.compare(traces, matched)
    for one in traces:
        ahead_ns = round((ahead_s or {}).get(one.rank or 0, 0.0) * 1e9)
        one.zero_ns, one.base_ns = one.zero_ns - ahead_ns, one.base_ns - ahead_ns
    case = RecordedCase(
        name=line(folder.path.resolve().name),
        world_size=_world_size(found),
        nodes=max(1, len(distinct(one.host for one in found))),
        device=next(iter(sorted(distinct(one.device for one in found), reverse=True)), UNKNOWN),
        backend=line(", ".join(distinct(one.backend for one in found)) or UNKNOWN),
    )
    hangs, not_entered, waits, last_calls = joined.story(dumps, table_together(dumps), case.id)
    launch = Launch(case=case, status=Status.OK, started_utc=utc_now(), wall_s=0.0)
    _fill(launch, [one for one in (*traces, *dumps) if one.steps or len(one.calls)])
    launch.findings = [*hangs, *_limits(traces, dumps, differ, case), *_left_out(found, left_out, case.id)]
    if not_entered is not None:
        launch.status, launch.failure = Status.HUNG, Failure(not_entered)
    launch.facts["recorded"] = {
        "files": [
            {"file": line(one.file), "kind": one.kind, "rank": one.rank, "host": one.host, "steps": len(one.steps),
             "calls": int(one.calls["phase"].notna().sum()), "whole": one.whole}
            for one in found
        ],
        "not_read": folder.others,
        "alone": any(one.world_size == 1 for one in traces),
        "size_known": any(one.world_size is not None for one in found if one.kind == kineto.NAME),
        "dumps": len(dumps),
        "waits": waits,
        "last_calls": last_calls,
        "kernels": [
            {"rank": one.rank, "name": name, "steps_s": seconds}
            for one in traces
            for name, seconds in one.kernels.items()
        ],
        "late": clocks.lateness(matched, one_clock),
        "one_clock": one_clock,
        "clocks": ahead_s is not None,
    }  # fmt: skip
    if logs := [one.log for one in found if one.log]:
        launch.facts["nccl"] = logs
    if inspected := [{"file": line(one.file), "ops": one.ops} for one in found if one.ops]:
        launch.facts["nccl_inspector"] = inspected
    return launch


def _fill(launch: Launch, recordings: Sequence[Recording]) -> None:
    """Add the samples, spans and calls of recordings to a launch, in seconds after the start of the first one."""
    if not recordings:
        return
    zero_ns = min(one.zero_ns for one in recordings)
    began = datetime.fromtimestamp(zero_ns / 1e9, UTC)
    launch.started_utc = began.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    calls: Any = table_together(recordings)
    launch.wall_s = max([0.0, *calls["made_s"].dropna()])
    for one in recordings:
        rank, later = one.rank or 0, (one.zero_ns - zero_ns) / 1e9
        for step, (begin, end) in one.steps.items():
            launch.samples.append(Sample(rank, step, Phase.MEASURE, "step_s", end - begin))
            launch.wall_s = max(launch.wall_s, end + later)
        launch.spans += [Span(rank, step, name, begin + later, end + later) for step, name, begin, end in one.parts]
    for row in known_records(calls[calls["phase"].notna()], _CALL):
        row["ranks"] = word(row["ranks"]) if row["ranks"] else None
        call = CollectiveSample(algorithm=RecordedCase.algorithm, in_place=None, n_wrong=None, **row)
        launch.collectives.append(call)


def _of_one_run(recordings: Sequence[Recording], left_out: dict[str, str]) -> Iterator[Recording]:
    """Yield the recordings that can be from one training run. Add the others to `left_out`, {file: reason}.

    For each rank, the first trace of a step and the newest dump count. Raises UsageError if traces have different
    numbers of ranks.
    """
    sizes = {one.world_size: one.file for one in recordings if one.world_size is not None and one.kind == kineto.NAME}
    if len(sizes) > 1:
        files = " and ".join(f"{file} ({format.count(size, 'rank')})" for size, file in list(sizes.items())[:2])
        raise UsageError(f"{files} are not of one training run; give a folder of one training run")
    size, file = next(iter(sizes.items()), (math.inf, ""))
    nccl_log = next((one for one in recordings if one.log.get("version")), None)

    def order(one: Recording) -> int:
        """Return the key that sorts traces by their start, and dumps by their last call, the newest first."""
        last_ns = round(max(one.calls["made_s"].dropna(), default=0.0) * 1e9)
        return one.zero_ns if one.kind == kineto.NAME else -(one.zero_ns + last_ns)

    kept: dict[tuple[str, int], list[Recording]] = {}
    for one in sorted(recordings, key=order):
        of_rank = kept.setdefault((one.kind, one.rank), []) if one.rank is not None else []
        is_dump = one.kind == flight_recorder.NAME
        other = next((each for each in of_rank if is_dump or set(each.steps) & set(one.steps)), None)
        if one.rank is not None and one.rank >= size:
            left_out[one.file] = f"left out, because it is of rank {one.rank}, and {file} has {size} ranks"
        elif other is not None:
            left_out[one.file] = f"left out, because {other.file} is of the same rank{' and steps' * (not is_dump)}"
        elif nccl_log and one.log and one.log["version"] not in (None, version := nccl_log.log["version"]):
            left_out[one.file] = f"left out: it is of NCCL {one.log['version']}, and {nccl_log.file} is of {version}"
        else:
            of_rank.append(one)
            yield one


def _world_size(found: Sequence[Recording]) -> int:
    """Return the number of ranks: the largest that traces and groups state, or that rank numbers require."""
    sizes = [one.world_size for one in found if one.world_size is not None]
    sizes += [size for one in found for size in one.calls["group_size"].dropna()]
    ranks = [one.rank for one in found if one.rank is not None]
    ranks += [each[-1] for one in found for each in (*one.groups.values(), *one.calls["ranks"].dropna()) if each]
    return max([1, *sizes, *(rank + 1 for rank in ranks)])


def _limits(
    traces: Sequence[Recording], dumps: Sequence[Recording], clocks_differ: str, case: RecordedCase
) -> Iterator[Finding]:
    """Yield warnings that limit the numbers: different clocks, missing ranks, and the cost of the profiler."""
    if clocks_differ:
        advice = "Compare durations of different ranks rather than their timestamps."
        yield Finding("recording_clocks", clocks_differ, advice, case.id)
    for what, some in (("trace", traces), ("dump of the flight recorder", dumps)):
        missing = sorted(set(range(case.world_size)) - {one.rank for one in some}) if some else []
        if missing:
            which = f"{ranks_text(missing)} of {case.world_size}"
            text = f"The {what} of {which} is missing, so these ranks are unknown."
            yield Finding("recording_ranks", text, "Let every rank write one into the same folder.", case.id)
    if any(one.steps for one in traces):
        text = "The steps were timed while torch.profiler recorded them, which makes them longer."
        advice = "Read shares rather than times from them. `parabench run` measures steps without instruments."
        yield Finding("recording_profiled", text, advice, case.id)


def _left_out(found: Sequence[Recording], files_left_out: Mapping[str, str], case_id: str | None) -> Iterator[Finding]:
    """Yield warnings about calls and files that are not in the tables, with the reasons."""
    counts: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for one in found:
        counts.update(one.skipped)
        for reason in [*one.unknown, *[_WHOLE] * one.whole]:
            files.setdefault(reason, []).append(one.file)
    for file, reason in files_left_out.items():
        files.setdefault(reason, []).append(file)
    for reason, count in counts.items():
        yield _leaving_out(f"{format.count(count, 'call')} {reason}.", case_id)
    for reason, names in files.items():
        yield _leaving_out(f"{format.listed(map(line, names), MOST_NAMED)}: {reason}.", case_id)


def _leaving_out(message: str, case_id: str | None) -> Finding:
    return Finding("recording_left_out", message, "Values that are left out are unknown, not 0.", case_id)
