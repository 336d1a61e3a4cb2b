"""Write a folder of recordings as a session of a separate results database: one launch with what is known."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pandas as pd

from parabench.analysis import format
from parabench.errors import UsageError
from parabench.files import replacing
from parabench.imports import Folder, clocks, flight_recorder, joined, kineto, nccl, nccl_tests, read_folder
from parabench.imports.joined import MOST_NAMED, ranks_text
from parabench.imports.recording import MOST_RANKS, Recording, distinct, number_in_name, table_together, word
from parabench.plan.case import UNKNOWN, RecordedCase, line
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import (
    CollectiveSample,
    Failure,
    Finding,
    Launch,
    Phase,
    Sample,
    Span,
    Status,
    utc_now,
)
from parabench.store.results import Results, load
from parabench.store.store import Store

SUITE = "recorded"
QUESTION = "What do these recordings show?"
LOGS_QUESTION = "How fast are collectives in these logs of nccl-tests?"


@contextmanager
def fresh_store(path: Path) -> Iterator[Path]:
    """Yield the path of a new results database, which replaces `path` unless an error ends the block.

    Raises UsageError if `path` holds anything but recordings, or cannot be written.
    """
    if path.exists() and (not path.is_file() or path.stat().st_size):
        results = load(path)
        logs = set(results.of_kind(CollectiveCase.kind))
        own = set(results.of_kind(RecordedCase.kind))
        listed = zip(results.listed["id"], results.listed["suite"], strict=True)
        if any(at not in own and (suite != nccl_tests.NAME or at not in logs) for at, suite in listed):
            raise UsageError(f"{path} holds sessions that no recording is of; give -o another name")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = stack.enter_context(replacing(path, 0o644))
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}; give -o another place") from error
        yield part


def record(folder: Folder, path: Path, argv: list[str]) -> None:
    """Write a folder's recordings to the store at `path` as finished sessions: logs of nccl-tests as one, and
    everything else as another. The page shows the last one.

    Raises UsageError if they are not of one training run, or no log can be used.
    """
    logs = [one for one in folder.recordings if one.kind == nccl_tests.NAME]
    others = [one for one in folder.recordings if one.kind != nccl_tests.NAME]
    parts: list[tuple[str, str, dict[str, Any], list[Launch]]] = []
    if others:
        launch = launch_of(replace(folder, recordings=others))
        parts.append((SUITE, QUESTION, {"kind": RecordedCase.kind}, [launch]))
    if logs:
        launches, timing = _of_logs(replace(folder, recordings=logs))
        protocol = {"mode": timing, "launches": 1}
        part = (nccl_tests.NAME, LOGS_QUESTION, {"kind": CollectiveCase.kind, "protocol": protocol}, launches)
        # Messages of NCCL alone are not worth the page.
        parts.insert(0 if any(one.kind != nccl.DEBUG for one in others) else 1, part)
    if len(parts) == 2:
        what = "Logs of nccl-tests" if parts[0][0] == nccl_tests.NAME else "NCCL's debug logs"
        parts[1][3][0].findings += [
            _leaving_out(f"{what} are session 1 of the page's store: `parabench report STORE@1` shows them.", None)
        ]
    with Store.open_or_create(path) as store:
        for suite, question, plan, launches in parts:
            cases = [launch.case.to_dict() for launch in launches]
            session = store.begin_session(
                label=None,
                suite=suite,
                argv=argv,
                seed=0,
                environment=_environment(logs if suite == nccl_tests.NAME else others),
                question=question,
                plan=plan | {"cases": cases, "blocks": 1},
            )
            for launch in launches:
                store.append(session, launch)
            store.finish_session(session)


def _of_logs(folder: Folder) -> tuple[list[Launch], str]:
    """Return the tests of logs as launches, and how all of them were timed. Raises UsageError if none can be used."""
    left_out: dict[str, str] = dict(folder.damaged)
    found = [each for one in folder.recordings for each in nccl_tests.launches(one, left_out)]
    if not found:
        file, reason = next(iter(left_out.items()))
        raise UsageError(f"{file} cannot be used: {reason}")
    ((timing, _),) = Counter(each for _, each in found).most_common(1)
    launches = [launch for launch, each in found if each == timing]
    for launch, each in found:
        if each != timing:
            left_out[launch.case.label] = f"left out: it timed {each}, and others {timing}; give it its own folder"
    _name_by_folder(launches)
    launches[0].findings += _left_out(folder.recordings, left_out, None)
    versions = {launch.facts["log"]["version"] for launch in launches}
    if len(versions) == 1 and None not in versions:
        launches[0].facts["nccl_version"] = versions.pop()
    return launches, timing


@contextmanager
def results_of(path: Path, argv: list[str]) -> Iterator[Results]:
    """Yield the results of a folder of recordings, kept for the block. Raises UsageError, as `record` does."""
    folder = read_folder(path)
    folder = replace(folder, recordings=[one for one in folder.recordings if one.kind != nccl_tests.NAME])
    if not folder.recordings:
        raise UsageError(f"{path} holds logs of nccl-tests alone; compare them with parabench report --from {path}")
    with tempfile.TemporaryDirectory() as made:
        store = Path(made) / "recorded.db"
        record(folder, store, argv)
        yield load(store)


def launch_of(folder: Folder) -> Launch:
    """Return a folder's recordings as a launch, and correct the clocks of its traces.

    Raises UsageError if they cannot be of one training run.
    """
    _place([one for one in folder.recordings if one.kind == kineto.NAME])
    left_out = dict(folder.damaged)
    found = list(_of_one_run(folder.recordings, left_out))
    traces = [one for one in found if one.kind == kineto.NAME and one.rank is not None]
    dumps = [one for one in found if one.kind == flight_recorder.NAME]
    for one in found:
        if one.kind == kineto.NAME and one.rank is None:
            left_out[one.file] = "neither the trace nor its name tells its rank; name it as in rank0.json"
    calls, dumped = table_together(traces), table_together(dumps)
    named = clocks.name_groups(calls, {one.world_size for one in traces})
    matched = clocks.matched(calls)
    clock = clocks.compare(traces, matched)
    for one in traces:
        one.move(-(clock.ahead_s or {}).get(one.rank or 0, 0.0))
    case = RecordedCase(
        name=line(folder.path.resolve().name),
        world_size=_world_size(found),
        nodes=max(1, len(distinct(one.host for one in found))),
        device=next(iter(sorted(distinct(one.device for one in found), reverse=True)), UNKNOWN),
        backend=line(", ".join(distinct(one.backend for one in found)) or UNKNOWN),
    )
    story = joined.story(dumps, dumped, case.id)
    launch = _launch(case, [*traces, *dumps], calls[["ranks", "group_size"]])
    launch.findings = [*story.findings, *_findings(found, traces, dumps, left_out, clock, case)]
    if story.hang is not None:
        launch.status, launch.failure = Status.HUNG, Failure(story.hang)
    launch.facts = _facts(folder, found, dumps, story)
    launch.facts["recorded"] |= {
        "late": clocks.lateness(matched, clock.one),
        "groups_inferred": named,
        "one_clock": clock.one,
        "clocks": clock.ahead_s is not None,
    }
    return launch


def _launch(case: RecordedCase, placed: Sequence[Recording], groups: pd.DataFrame) -> Launch:
    """Return a launch with the rows of traces and dumps on one clock; `groups` are those of the traces' calls."""
    known = [one for one in placed if one.steps or len(one.calls)]
    zero_ns = min((one.zero_ns for one in known), default=0)
    calls: Any = table_together(placed)
    calls.loc[groups.index, groups.columns] = groups
    began = datetime.fromtimestamp(zero_ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    launch = Launch(case=case, status=Status.OK, started_utc=began if known else utc_now(), wall_s=0.0)
    launch.wall_s = max([0.0, *calls["made_s"].dropna()])
    for one in known:
        rank, later = one.rank or 0, (one.zero_ns - zero_ns) / 1e9
        for step, (begin, end) in one.steps.items():
            launch.samples.append(Sample(rank, step, Phase.MEASURE, "step_s", end - begin))
            launch.wall_s = max(launch.wall_s, end + later)
        launch.spans += [Span(rank, step, name, begin + later, end + later) for step, name, begin, end in one.parts]
    rows = calls[calls["phase"].notna()].astype(object)
    rows = rows.where(rows.notna(), None).assign(ranks=rows["ranks"].map(word, na_action="ignore"))
    launch.collectives = [
        CollectiveSample(
            one.rank, one.step, one.seq, one.op, RecordedCase.algorithm, one.group_size, one.bytes, one.start_s,
            one.duration_s, one.phase, None, None, one.ranks, one.dtype, one.made_s,
        )
        for one in rows.itertuples()
    ]  # fmt: skip
    return launch


def _name_by_folder(launches: Sequence[Launch]) -> None:
    """Name tests by their folder instead of their file, in folders below the given one without two tests of a kind."""
    cases = [cast(CollectiveCase, launch.case) for launch in launches]
    kinds = [(os.path.dirname(each.source), *(getattr(each, name) for name in _KIND)) for each in cases]
    twice = {folder for (folder, *_), count in Counter(kinds).items() if count > 1}
    for launch, case, (folder, *_) in zip(launches, cases, kinds, strict=True):
        if folder and folder not in twice:
            launch.case = case.replace(source=folder)


_KIND = ("op", "algorithm", "world_size", "nodes", "dtype", "redop", "device", "backend")


def _place(traces: Sequence[Recording]) -> None:
    """Give traces without a rank the one that their names show, or 0 to a single trace.

    A number that ends a name is a rank only if several names differ in nothing else, count from 0, and belong to traces
    of the same time; otherwise it may count steps, or belong to the model's name.
    """
    unknown = [one for one in traces if one.rank is None]
    if len(traces) == 1 and unknown:
        traces[0].rank = 0
        if not traces[0].alone:
            traces[0].unknown.append("neither the trace nor its name tells its rank; it is shown as rank 0")
        return
    named = [(one, *found) for one in unknown if (found := number_in_name(one.file))]
    together = max((_span(one)[0] for one in traces), default=0) < min((_span(one)[1] for one in traces), default=0)
    numbers = sorted(number for _, _, number in named)
    if len({front for _, front, _ in named}) == 1 and together and numbers == list(range(len(traces))):
        for one, _, rank in named:
            one.rank = rank


def _span(one: Recording) -> tuple[int, int]:
    """Return the first and last time of a trace's steps, or of a dump's calls, in nanoseconds since 1970."""
    last = [end for _, end in one.steps.values()] + one.calls["made_s"].dropna().tolist()
    return one.zero_ns, one.zero_ns + round(max(last, default=0.0) * 1e9)


def _of_one_run(recordings: Sequence[Recording], left_out: dict[str, str]) -> Iterator[Recording]:
    """Yield the recordings that can be of one training run, and put the others into `left_out` with the reason.

    A rank's first trace of a step counts, its newest dump, and debug logs of the NCCL version of the first log. Raises
    UsageError if traces have different numbers of ranks.
    """
    sizes = {one.world_size: one.file for one in recordings if one.world_size is not None and one.kind == kineto.NAME}
    if len(sizes) > 1:
        told = " and ".join(f"{file} of one of {size}" for size, file in list(sizes.items())[:2])
        raise UsageError(f"{told} ranks are not of one training; give a folder of one training")
    size, file = next(iter(sizes.items()), (MOST_RANKS, ""))
    nccl_log = next((one for one in recordings if one.log.get("version")), None)
    kept: dict[tuple[str, int], list[Recording]] = {}
    for one in sorted(recordings, key=lambda one: _span(one)[0] if one.kind == kineto.NAME else -_span(one)[1]):
        own = kept.setdefault((one.kind, one.rank), []) if one.rank is not None else []
        is_dump = one.kind == flight_recorder.NAME
        other = next((each for each in own if is_dump or set(each.steps) & set(one.steps)), None)
        if one.rank is not None and one.rank >= size:
            left_out[one.file] = f"left out, because it is of rank {one.rank}, and {file} of one of {size} ranks"
        elif other is not None:
            left_out[one.file] = f"left out, because {other.file} is of the same rank{' and steps' * (not is_dump)}"
        elif nccl_log and one.log and one.log["version"] not in (None, version := nccl_log.log["version"]):
            left_out[one.file] = f"left out: it is of NCCL {one.log['version']}, and {nccl_log.file} of {version}"
        else:
            own.append(one)
            yield one


def _world_size(found: Sequence[Recording]) -> int:
    """Return the number of ranks; if no trace has it, the smallest that fits all recordings."""
    told = [one.world_size for one in found if one.world_size is not None]
    ranks = [one.rank for one in found if one.rank is not None]
    told += [size for one in found for size in one.calls["group_size"].dropna()]
    ranks += [each[-1] for one in found for each in (*one.groups.values(), *one.calls["ranks"].dropna()) if each]
    return min(max([1, *told, *(rank + 1 for rank in ranks)]), MOST_RANKS)


def _findings(
    found: Sequence[Recording],
    traces: Sequence[Recording],
    dumps: Sequence[Recording],
    files_left_out: Mapping[str, str],
    clock: clocks.Clocks,
    case: RecordedCase,
) -> Iterator[Finding]:
    """Yield what limits the numbers: clocks, missing ranks, the profiler, and what is left out, with the reason."""
    if clock.text:
        advice = "Compare lengths of different ranks, which need one clock each, rather than times."
        yield Finding(code="recording_clocks", message=clock.text, advice=advice, case_id=case.id)
    for what, some in (("trace", traces), ("dump of the flight recorder", dumps)):
        missing = sorted(set(range(case.world_size)) - {one.rank for one in some}) if some else []
        if missing:
            yield Finding(
                code="recording_ranks",
                message=f"There is no {what} of {ranks_text(missing)} of {case.world_size}: of those nothing is known.",
                advice="Have every rank write one into the same folder.",
                case_id=case.id,
            )
    if any(one.steps for one in traces):
        yield Finding(
            code="recording_profiled",
            message="The steps were timed while torch.profiler recorded them, which makes them longer.",
            advice="Read shares rather than times from them; parabench run times steps with no instrument switched on.",
            case_id=case.id,
        )
    yield from _left_out(found, files_left_out, case.id)


def _left_out(found: Sequence[Recording], files_left_out: Mapping[str, str], case_id: str | None) -> Iterator[Finding]:
    """Yield what is not in the tables, with the reason."""
    counts: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for one in found:
        counts.update(one.skipped)
        for reason in [*one.unknown, *[_WHOLE] * one.whole]:
            files.setdefault(reason, []).append(one.file)
    for file, reason in files_left_out.items():
        files.setdefault(reason, []).append(file)
    told = [f"{format.count(count, 'call')} {reason}." for reason, count in counts.items()]
    told += [f"{format.listed(map(line, names), MOST_NAMED)}: {reason}." for reason, names in files.items()]
    for message in told:
        yield _leaving_out(message, case_id)


def _leaving_out(message: str, case_id: str | None) -> Finding:
    advice = "Take what is left out as unknown, not as nothing."
    return Finding(code="recording_left_out", message=message, advice=advice, case_id=case_id)


_WHOLE = (
    "it has no steps (`ProfilerStep#N`), so the whole trace is one step here; call the profiler's step() after each one"
)


def _facts(
    folder: Folder, found: Sequence[Recording], dumps: Sequence[Recording], story: joined.Story
) -> dict[str, Any]:
    files = [
        {"file": line(one.file), "kind": one.kind, "rank": one.rank, "host": one.host, "steps": len(one.steps),
         "calls": int(one.calls["phase"].notna().sum()), "whole": one.whole}
        for one in found
    ]  # fmt: skip
    traces = [one for one in found if one.kind == kineto.NAME]
    facts: dict[str, Any] = {
        "recorded": {
            "files": files,
            "not_read": len(folder.others),
            "alone": any(one.alone for one in traces),
            "size_known": any(one.world_size is not None for one in traces),
            "dumps": len(dumps),
            "waits": story.waits,
            "last_calls": story.last_calls,
            "kernels": [
                {"rank": one.rank, "name": name, "steps_s": seconds}
                for one in traces
                if one.rank is not None
                for name, seconds in one.kernels.items()
            ],
        }
    }
    if logs := [one.log for one in found if one.log]:
        facts["nccl"] = logs
    if inspected := [{"file": line(one.file), "ops": one.ops} for one in found if one.ops]:
        facts["nccl_inspector"] = inspected
    return facts


def _environment(found: Sequence[Recording]) -> dict[str, Any]:
    hosts = distinct(one.host for one in found)
    gpus = next((one.gpus for one in found if one.gpus), [])
    known: dict[str, Any] = {"host": line(", ".join(hosts))} if hosts else {}
    unknown = "no recording tells it"
    return known | {"gpus": gpus, "unknown_versions": {"torch": unknown, "python": unknown}}
