"""Write a folder of recordings as a session of a separate results database: one launch with what is known."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.files import replacing
from parabench.imports import Folder, flight_recorder, joined, kineto, nccl_tests
from parabench.imports.joined import MUTUAL, ranks_said
from parabench.imports.recording import MOST_RANKS, MOST_ROWS, Call, Recording, distinct, number_in_name
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
from parabench.store.results import load
from parabench.store.store import Store

SUITE = "recorded"
QUESTION = "What do these recordings of a training tell?"
LOGS_QUESTION = "How fast are collectives in these logs of nccl-tests?"
# Clocks of one host are one clock; what profilers note of a thread may be late by less.
CLOCK_TOLERANCE_NS = 100_000
# Names in a sentence.
_NAMED = 4


@contextmanager
def fresh_store(path: Path) -> Iterator[Path]:
    """A place for a new store, which becomes `path` at the end of the block; where an error ends it nothing is left.

    Raises UsageError where a file is there that holds anything else than recordings, and for what cannot be written.
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

    Raises UsageError if they are not of one training run, are too many, or cannot be used.
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
        parts.insert(0 if any(one.kind != nccl_tests.DEBUG for one in others) else 1, part)
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
    launches[0].findings += _left_out(folder.recordings, [], left_out, None)
    versions = {launch.facts["log"]["version"] for launch in launches}
    if len(versions) == 1 and None not in versions:
        launches[0].facts["nccl_version"] = versions.pop()
    return launches, timing


def launch_of(folder: Folder) -> Launch:
    """Return a folder's recordings as a launch. Raises UsageError if they cannot be of one training run."""
    _place([one for one in folder.recordings if one.kind == kineto.NAME])
    left_out = dict(folder.damaged)
    found = [one for one in _of_one_run(folder.recordings, left_out) if not _other_nccl(one, folder, left_out)]
    traces = [one for one in found if one.kind == kineto.NAME]
    unplaced = [one for one in traces if one.rank is None]
    traces = [one for one in traces if one.rank is not None]
    dumps = [one for one in found if one.kind == flight_recorder.NAME]
    hosts = distinct(one.host for one in found)
    case = RecordedCase(
        name=line(folder.path.resolve().name),
        world_size=_world_size(found),
        nodes=max(1, len(hosts)),
        device=next(iter(sorted(distinct(one.device for one in found), reverse=True)), UNKNOWN),
        backend=line(", ".join(distinct(one.backend for one in found)) or UNKNOWN),
    )
    clock = _Origin.of([*traces, *dumps])
    launch = Launch(case=case, status=Status.OK, started_utc=clock.utc, wall_s=clock.s(clock.last_ns))
    for one in traces:
        launch.samples += _samples(one, clock)
        launch.spans += _spans(one, clock)
    for one in [*traces, *dumps]:
        launch.collectives += _collectives(one, clock)
    story = joined.story(dumps, case.id)
    launch.findings = [
        *story.findings,
        *_clock_findings(traces, hosts, case.id),
        *_rank_findings(traces, dumps, case),
        *_left_out(found, unplaced, left_out, case.id),
    ]
    if story.hang is not None:
        launch.status, launch.failure = Status.HUNG, Failure(story.hang)
    launch.facts = _facts(folder, found, dumps, story)
    return launch


def _name_by_folder(launches: Sequence[Launch]) -> None:
    """Name tests by their folder instead of their file, in folders below the given one without two tests of a kind."""
    cases = [cast(CollectiveCase, launch.case) for launch in launches]
    kinds = [(os.path.dirname(each.source), *(getattr(each, name) for name in _KIND)) for each in cases]
    twice = {folder for (folder, *_), count in Counter(kinds).items() if count > 1}
    for launch, case, (folder, *_) in zip(launches, cases, kinds, strict=True):
        if folder and folder not in twice:
            launch.case = replace(case, source=folder)


_KIND = ("op", "algorithm", "world_size", "nodes", "dtype", "redop", "device", "backend")


@dataclass(frozen=True)
class _Origin:
    """The clock of a store's moments: it begins with the first that was recorded, so that a float holds nanoseconds."""

    first_ns: int | None
    last_ns: int

    @classmethod
    def of(cls, found: Sequence[Recording]) -> _Origin:
        steps = [moment for one in found for pair in one.steps.values() for moment in pair]
        made = [call.made_ns for one in found for call in one.calls if call.made_ns is not None]
        every = [*steps, *made]
        return cls(min(every, default=None), max(every, default=0))

    @property
    def utc(self) -> str:
        if self.first_ns is None:
            return utc_now()
        moment = datetime.fromtimestamp(self.first_ns / 1e9, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def s(self, ns: int) -> float:
        return (ns - (self.first_ns or 0)) / 1e9

    def maybe(self, ns: int | None) -> float | None:
        return None if ns is None else self.s(ns)


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
    """Return the first and last time of a trace's steps, or of a dump's calls; (0, 0) if there are none."""
    moments = [moment for pair in one.steps.values() for moment in pair] + [each.made_ns for each in one.entries]
    return min(moments, default=0), max(moments, default=0)


def _of_one_run(recordings: Sequence[Recording], left_out: dict[str, str]) -> Iterator[Recording]:
    """Yield the recordings that can be of one training run, and put the others into `left_out` with the reason.

    A rank's first trace of a step counts, and its newest dump. Raises UsageError if traces have different numbers of
    ranks, or the recordings are too many.
    """
    if sum(one.rows for one in recordings) > MOST_ROWS:
        raise UsageError(f"these recordings hold more than {MOST_ROWS:,} steps and calls; give a folder with fewer")
    sizes = {one.world_size: one.file for one in recordings if one.world_size is not None and one.kind == kineto.NAME}
    if len(sizes) > 1:
        told = " and ".join(f"{file} of one of {size}" for size, file in list(sizes.items())[:2])
        raise UsageError(f"{told} ranks are not of one training; give a folder of one training")
    size, file = next(iter(sizes.items()), (MOST_RANKS, ""))
    kept: dict[tuple[str, int], list[Recording]] = {}
    for one in sorted(recordings, key=lambda one: _span(one)[0] if one.kind == kineto.NAME else -_span(one)[1]):
        own = kept.setdefault((one.kind, one.rank), []) if one.rank is not None else []
        is_dump = one.kind == flight_recorder.NAME
        other = next((each for each in own if is_dump or set(each.steps) & set(one.steps)), None)
        if one.rank is not None and one.rank >= size:
            left_out[one.file] = f"left out, because it is of rank {one.rank}, and {file} of one of {size} ranks"
        elif other is not None:
            left_out[one.file] = f"left out, because {other.file} is of the same rank{' and steps' * (not is_dump)}"
        else:
            own.append(one)
            yield one


def _other_nccl(one: Recording, folder: Folder, left_out: dict[str, str]) -> bool:
    """Return whether a debug log is of another NCCL than the first one that names its version; then leave it out."""
    versions = {each.log["version"]: each.file for each in reversed(folder.recordings) if each.log.get("version")}
    *_, (version, file) = versions.items() or [(None, "")]
    other = bool(one.log and one.log["version"] not in (None, version))
    if other:
        left_out[one.file] = f"left out: it is of NCCL {one.log['version']}, and {file} of {version}"
    return other


def _world_size(found: Sequence[Recording]) -> int:
    """Return the number of ranks; if no trace has it, the smallest that fits all recordings."""
    told = [one.world_size for one in found if one.world_size is not None]
    ranks = [one.rank for one in found if one.rank is not None]
    calls = [call for one in found for call in one.calls]
    told += [call.group_size for call in calls]
    ranks += [call.ranks[-1] for call in calls if call.ranks]
    ranks += [each[-1] for one in found for each in one.groups.values() if each]
    return min(max([1, *told, *(rank + 1 for rank in ranks)]), MOST_RANKS)


def _samples(one: Recording, clock: _Origin) -> Iterator[Sample]:
    assert one.rank is not None
    for step, (begin, end) in one.steps.items():
        yield Sample(one.rank, step, Phase.MEASURE, "step_s", (end - begin) / 1e9)


def _spans(one: Recording, clock: _Origin) -> Iterator[Span]:
    assert one.rank is not None
    for part in one.parts:
        yield Span(one.rank, part.step, part.name, clock.s(part.begin_ns), clock.s(part.end_ns))


def _collectives(one: Recording, clock: _Origin) -> Iterator[CollectiveSample]:
    assert one.rank is not None
    for call in one.calls:
        yield CollectiveSample(
            one.rank, call.step, call.seq, call.op, RecordedCase.algorithm, call.group_size, call.bytes,
            clock.maybe(call.start_ns), None if call.duration_ns is None else call.duration_ns / 1e9, call.phase,
            None, None, None if call.ranks is None else _word(call.ranks), call.dtype, clock.maybe(call.made_ns),
        )  # fmt: skip


def _word(ranks: Sequence[int]) -> str:
    """The ranks of a group as `CollectiveSample` has them."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _clock_findings(traces: Sequence[Recording], hosts: Sequence[str], case_id: str) -> Iterator[Finding]:
    """Yield that clocks of several hosts may differ, and by how much clocks differ at least if a rank finished a call
    before another rank began it. Traces by a torch before 2.11 do not name their hosts."""
    apart = _apart_ns(traces)
    if len(hosts) < 2 and apart <= CLOCK_TOLERANCE_NS:
        return
    sentences = []
    if len(hosts) > 1:
        sentences.append(f"The recordings are of {len(hosts)} hosts, and none tells how far their clocks agree.")
    if apart > CLOCK_TOLERANCE_NS:
        length = format.duration(apart / 1e9, 3) if apart >= 10**9 else format.milliseconds(apart / 1e9)
        sentences.append(
            f"The ranks' clocks differ by at least {length}: a rank had finished a collective so long before another "
            "rank began it."
        )
    yield Finding(
        code="recording_clocks",
        message=" ".join(sentences),
        advice="Compare lengths of different ranks, which need one clock each, and no moments.",
        case_id=case_id,
    )


def _apart_ns(traces: Sequence[Recording]) -> int:
    """Return the longest time by which a rank began a call after another rank had finished it."""
    every: dict[tuple[Any, ...], list[Call]] = {}
    totals: dict[tuple[Any, ...], set[int]] = {}
    for one in traces:
        counts: Counter[tuple[Any, ...]] = Counter()
        for call in one.calls:
            if call.op in MUTUAL and call.ranks and call.start_ns is not None and call.duration_ns is not None:
                key = (call.step, call.op, call.ranks, call.bytes)
                counts[key] += 1
                every.setdefault((*key, counts[key]), []).append(call)
        for key, count in counts.items():
            totals.setdefault(key, set()).add(count)
    # If ranks have different numbers of a call, its n-th is not the same call on all of them.
    every = {key: calls for key, calls in every.items() if len(totals[key[:-1]]) == 1}
    starts = (max(call.start_ns or 0 for call in calls) for calls in every.values())
    ends = (min((call.start_ns or 0) + (call.duration_ns or 0) for call in calls) for calls in every.values())
    return max((start - end for start, end in zip(starts, ends, strict=True)), default=0)


def _rank_findings(traces: Sequence[Recording], dumps: Sequence[Recording], case: RecordedCase) -> Iterator[Finding]:
    """Of which ranks there is nothing, and that a profiler ran in the steps."""
    for what, some in (("trace", traces), ("dump of the flight recorder", dumps)):
        there = {one.rank for one in some if one.rank is not None}
        missing = [rank for rank in range(case.world_size) if rank not in there] if there else []
        if missing:
            yield Finding(
                code="recording_ranks",
                message=f"There is no {what} of {ranks_said(missing)} of {case.world_size}: of those nothing is known.",
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


def _left_out(
    found: Sequence[Recording], unplaced: Sequence[Recording], files_left_out: Mapping[str, str], case_id: str | None
) -> Iterator[Finding]:
    """Yield what is not in the tables, with the reason."""
    why: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for one in found:
        why.update(one.left_out)
        for reason in one.unknown:
            files.setdefault(reason, []).append(one.file)
        if one.whole:
            files.setdefault(_WHOLE, []).append(one.file)
    for file, reason in files_left_out.items():
        files.setdefault(reason, []).append(file)
    told = [f"{count:,} call{'s' * (count > 1)} left out: {reason}." for reason, count in why.items()]
    told += [f"{_listed(names)}: {reason}." for reason, names in files.items()]
    if unplaced:
        names = _listed([one.file for one in unplaced])
        told.append(f"{names}: neither the trace nor its name tells its rank; name it as in rank0.json.")
    for message in told:
        yield _leaving_out(message, case_id)


def _leaving_out(message: str, case_id: str | None) -> Finding:
    advice = "Take what is left out as unknown, not as nothing."
    return Finding(code="recording_left_out", message=message, advice=advice, case_id=case_id)


_WHOLE = (
    "it has no steps (`ProfilerStep#N`), so the whole trace is one step here; call the profiler's step() after each one"
)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(line(name) for name in names[:_NAMED]) + more


# As many files, and last calls, a launch's facts name.
_MOST_NAMED = 5000


def _facts(
    folder: Folder, found: Sequence[Recording], dumps: Sequence[Recording], story: joined.Story
) -> dict[str, Any]:
    files = [
        {"file": line(one.file), "kind": one.kind, "rank": one.rank, "host": one.host, "steps": len(one.steps),
         "calls": len(one.calls), "whole": one.whole}
        for one in found
    ]  # fmt: skip
    traces = [one for one in found if one.kind == kineto.NAME]
    facts: dict[str, Any] = {
        "recorded": {
            "files": files[:_MOST_NAMED],
            "not_read": len(folder.others),
            "alone": any(one.alone for one in traces),
            "size_known": any(one.world_size is not None for one in traces),
            "dumps": len(dumps),
            "waits": story.waits[:_MOST_NAMED],
            "last_calls": joined.last_calls(dumps)[:_MOST_NAMED],
        }
    }
    if logs := [one.log for one in found if one.log]:
        facts["nccl"] = logs[:_MOST_NAMED]
    if inspected := [{"file": line(one.file), "ops": one.ops} for one in found if one.ops]:
        facts["nccl_inspector"] = inspected[:_MOST_NAMED]
    return facts


def _environment(found: Sequence[Recording]) -> dict[str, Any]:
    hosts = distinct(one.host for one in found)
    gpus = next((one.gpus for one in found if one.gpus), [])
    known: dict[str, Any] = {"host": line(", ".join(hosts))} if hosts else {}
    unknown = "no recording tells it"
    return known | {"gpus": gpus, "unknown_versions": {"torch": unknown, "python": unknown}}
