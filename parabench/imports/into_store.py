"""A folder of recordings as a session of a store of its own: one launch, of what is known of the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parabench.errors import UsageError
from parabench.files import replacing
from parabench.imports import Folder, joined, kineto
from parabench.imports.joined import MUTUAL, ranks_said
from parabench.imports.recording import MOST_RANKS, MOST_ROWS, Call, Recording, distinct
from parabench.plan.case import UNKNOWN, RecordedCase, line
from parabench.store.record import (
    RECORDING_HANG,
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
        kinds = set(load(path).of_kind(RecordedCase.kind))
        others = [at for at in load(path).listed["id"].tolist() if at not in kinds]
        if others:
            raise UsageError(f"{path} holds sessions that no recording is of; give -o another name")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = stack.enter_context(replacing(path, 0o644))
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}; give -o another place") from error
        yield part


def record(folder: Folder, path: Path, argv: list[str]) -> None:
    """Write what a folder's recordings tell to the store at `path`, as a session that is finished.

    Raises UsageError where they are not of one training, or tell more than anybody reads.
    """
    launch = launch_of(folder)
    with Store.open_or_create(path) as store:
        session = store.begin_session(
            label=None,
            suite=SUITE,
            argv=argv,
            seed=0,
            environment=_environment(folder.recordings),
            question=QUESTION,
            plan={"kind": RecordedCase.kind, "cases": [launch.case.to_dict()], "blocks": 1},
        )
        store.append(session, launch)
        store.finish_session(session)


def launch_of(folder: Folder) -> Launch:
    """The training of which a folder's recordings tell, as a launch. Raises UsageError."""
    found = folder.recordings
    _check_one_training(found)
    traces, dumps = ([one for one in found if one.kind == kind] for kind in (kineto.NAME, "flight recorder"))
    traces, unplaced = _placed(traces)
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
    launch.findings = [
        *joined.findings(dumps, case.id),
        *_clock_findings(traces, hosts, case.id),
        *_rank_findings(traces, dumps, case),
        *_left_out(found, unplaced, case.id),
    ]
    hang = next((each for each in launch.findings if each.code == RECORDING_HANG), None)
    if hang is not None:
        launch.status, launch.failure = Status.HUNG, Failure(hang.message)
    launch.facts = _facts(folder, dumps)
    return launch


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


def _check_one_training(found: Sequence[Recording]) -> None:
    """Raise UsageError where recordings contradict each other, or are too many."""
    if sum(one.rows for one in found) > MOST_ROWS:
        raise UsageError(f"these recordings hold more than {MOST_ROWS:,} steps and calls; give a folder with fewer")
    sizes: dict[int, str] = {}
    seen: dict[tuple[str, int], Recording] = {}
    steps: dict[tuple[int, int], str] = {}
    for one in found:
        if one.world_size is not None and one.kind == kineto.NAME:
            sizes.setdefault(one.world_size, one.file)
        if one.rank is None:
            continue
        other = seen.setdefault((one.kind, one.rank), one)
        if one.kind != kineto.NAME and other is not one:
            raise UsageError(f"{other.file} and {one.file} are both of rank {one.rank}; give a folder of one training")
        for step in one.steps:
            if (there := steps.setdefault((one.rank, step), one.file)) != one.file:
                raise UsageError(
                    f"{there} and {one.file} both have step {step} of rank {one.rank}; give a folder of one training"
                )
    if len(sizes) > 1:
        told = " and ".join(f"{file} of one of {size}" for size, file in list(sizes.items())[:2])
        raise UsageError(f"{told} ranks are not of one training; give a folder of one training")
    for size, file in sizes.items():
        beyond = next((one for one in found if one.rank is not None and one.rank >= size), None)
        if beyond is not None:
            raise UsageError(
                f"{beyond.file} is of rank {beyond.rank}, and {file} of one of {size} ranks; give a folder of one "
                "training"
            )


def _placed(traces: Sequence[Recording]) -> tuple[list[Recording], list[Recording]]:
    """(the traces with a rank, those without). A single one of a process that was alone is rank 0's."""
    if len(traces) == 1 and traces[0].rank is None:
        traces[0].rank = 0
    return [one for one in traces if one.rank is not None], [one for one in traces if one.rank is None]


def _world_size(found: Sequence[Recording]) -> int:
    """How many ranks there were; where no trace tells, at least as many."""
    told = [one.world_size for one in found if one.world_size is not None]
    ranks = [one.rank for one in found if one.rank is not None]
    of_groups = [each.ranks[-1] for one in found for each in one.entries if each.ranks]
    return min(max([1, *told, *(rank + 1 for rank in (*ranks, *of_groups))]), MOST_RANKS)


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
    """That clocks of several hosts may differ; and by how much they do at least, where a rank was done with a call
    before another one began it."""
    if len(hosts) < 2:
        return
    apart = _apart_ns(traces)
    said = f"The recordings are of {len(hosts)} hosts, and none tells how far their clocks agree"
    if apart > CLOCK_TOLERANCE_NS:
        said += (
            f"; they differ by at least {apart / 1e6:.3g} ms, for a rank was done with a collective so long before "
            "another one began it"
        )
    yield Finding(
        code="recording_clocks",
        message=f"{said}.",
        advice="Compare lengths of different ranks, which need one clock each, and no moments.",
        case_id=case_id,
    )


def _apart_ns(traces: Sequence[Recording]) -> int:
    """By how much the last rank began a call after the first one was done with it, at most of all calls."""
    every: dict[tuple[Any, ...], list[Call]] = {}
    for one in traces:
        counts: Counter[tuple[Any, ...]] = Counter()
        for call in one.calls:
            if call.op in MUTUAL and call.ranks and call.start_ns is not None and call.duration_ns is not None:
                key = (call.step, call.op, call.ranks, call.bytes)
                counts[key] += 1
                every.setdefault((*key, counts[key]), []).append(call)
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


def _left_out(found: Sequence[Recording], unplaced: Sequence[Recording], case_id: str) -> Iterator[Finding]:
    """What is not in the tables, and why."""
    why: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for one in found:
        why.update(one.left_out)
        for reason in one.unknown:
            files.setdefault(reason, []).append(one.file)
    told = [f"{count:,} call{'s' * (count > 1)} left out: {reason}." for reason, count in why.items()]
    told += [f"{_listed(names)}: {reason}." for reason, names in files.items()]
    if unplaced:
        names = _listed([one.file for one in unplaced])
        told.append(f"{names}: neither the trace nor its name tells its rank; name it as in rank0.json.")
    for message in told:
        yield Finding(
            code="recording_left_out",
            message=message,
            advice="Take what is left out as unknown, not as nothing.",
            case_id=case_id,
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(line(name) for name in names[:_NAMED]) + more


# As many files, and last calls, a launch's facts name.
_MOST_NAMED = 5000


def _facts(folder: Folder, dumps: Sequence[Recording]) -> dict[str, Any]:
    files = [
        {"file": line(one.file), "kind": one.kind, "rank": one.rank, "host": one.host, "steps": len(one.steps),
         "calls": len(one.calls)}
        for one in folder.recordings
    ]  # fmt: skip
    facts: dict[str, Any] = {
        "recorded": {
            "files": files[:_MOST_NAMED],
            "not_read": len(folder.others),
            "last_calls": joined.last_calls(dumps)[:_MOST_NAMED],
        }
    }
    if inspected := [{"file": line(one.file), "ops": one.ops} for one in folder.recordings if one.ops]:
        facts["nccl_inspector"] = inspected[:_MOST_NAMED]
    return facts


def _environment(found: Sequence[Recording]) -> dict[str, Any]:
    hosts = distinct(one.host for one in found)
    gpus = next((one.gpus for one in found if one.gpus), [])
    known: dict[str, Any] = {"host": line(", ".join(hosts))} if hosts else {}
    unknown = "no recording tells it"
    return known | {"gpus": gpus, "unknown_versions": {"torch": unknown, "python": unknown}}
