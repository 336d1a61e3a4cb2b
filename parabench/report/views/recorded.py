"""Make the page of a training run that other tools recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.environment.facts import devices_text
from parabench.analysis.session import SessionData
from parabench.analysis.step import recorded
from parabench.analysis.step.nccl import inspected, wiring
from parabench.analysis.warnings import all_findings
from parabench.metrics import STEP_PARTS
from parabench.report.sections.step import nccl_section
from parabench.report.sections.timeline import MOST_RANKS, timeline_panel
from parabench.report.spec import WORDED, Column, Makers, Section, table_of
from parabench.report.views.answer import AnswerView

# Waiting for the last rank is worth a sentence if it takes this share of the steps.
_WORTH = 0.01


def render(seen: SessionData) -> str:
    """Return the HTML of the page."""
    name = next(iter(seen.labels.values()), seen.session.suite)
    made = [section for make in SECTIONS.values() if (section := make(seen)) is not None]
    return AnswerView(
        seen.session.question,
        name,
        Answer(tuple(sentences(seen)), warnings=tuple(all_findings(seen.results, seen.session, ()))),
        [*made, Section("environment", "Environment", pairs=tuple(_facts(seen)))],
        seen.session.argv,
        f"parabench · recorded elsewhere · {name}",
        trust=[
            "parabench did not run this training job, so its configuration and the correctness of its results are "
            "unknown."
        ],
        labels=seen.labels,
    ).html()


def sentences(seen: SessionData) -> Iterator[str]:
    """Yield the conclusions: the length of a step, its exposed communication, and whether ranks wait for each other."""
    lengths, ranks = recorded.slowest_lengths(seen), seen.once(recorded.rank_table)
    if len(lengths):
        low, high = (format.milliseconds(float(each)) for each in (lengths.min(), lengths.max()))
        over = f"{format.count(len(lengths), 'step')} of {format.count(len(ranks), 'rank')}"
        if recorded.is_whole(seen):
            over = format.count(len(ranks), "rank")
            yield f"The whole trace, which has no steps, took {high} on the slowest of {over}."
        else:
            median = format.milliseconds(float(lengths.median()))
            spread = f" ({low} to {high})" if low != high else ""
            yield f"A step took {median} on its slowest rank, the median of {over}{spread}."
        yield _exposed(seen, ranks)
        yield from _latest(seen, len(ranks))
    yield from _waiting(seen)
    if len(ops := inspected(seen)):
        yield f"NCCL's Inspector timed {format.count(len(ops), 'operation')}, counting sizes apart."
    if wired := wiring(seen):
        yield wired


def _exposed(seen: SessionData, ranks: pd.DataFrame) -> str:
    known = ranks.dropna(subset="exposed_share")
    what = "trace" if recorded.is_whole(seen) else "step"
    if known.empty:
        return f"The share of the {what} that is exposed communication is unknown: the warnings have the reason."
    most = known.iloc[int(known["exposed_share"].argmax())]
    low, high = (format.percent(float(each)) for each in (known["exposed_share"].min(), most["exposed_share"]))
    who = "" if low == high else f", most on rank {int(most['rank'])}"
    some = "" if len(known) == len(ranks) else f" on {len(known)} of {len(ranks)} ranks; it is unknown on the others"
    share = low if low == high else f"{low} to {high}"
    return f"Exposed communication is {share} of each rank's {what}{who}{some}."


def _latest(seen: SessionData, ranks: int) -> Iterator[str]:
    """Yield a sentence about the rank that the others wait for, or that it is unknown."""
    table = recorded.late_table(seen)
    if table.empty:
        if ranks > 1:
            yield "The late rank is unknown: no timed collective of all ranks of a known group is in the traces."
        return
    by_rank = table.groupby("rank")[["total_s", "last", "calls"]].sum().astype(float)
    own = by_rank.sort_values("total_s", ascending=False, kind="stable").iloc[0]
    steps_s = recorded.slowest_lengths(seen).sum()
    share = own["total_s"] / steps_s if steps_s else 0.0
    if share < _WORTH:
        yield f"No rank is late: the time after the first rank is below {format.percent(_WORTH)} of the steps."
        return
    one_clock = recorded.facts_of(seen).get("one_clock")
    how = "" if one_clock else ", by the shortest kernel, because their clocks are not known to agree"
    calls = format.count(int(own["calls"]), "collective")
    yield (
        f"Others wait for rank {own.name}: it came last in {own['last']:,.0f} of {calls}, and after the first rank by "
        f"{format.percent(share)} of the steps in all{how}."
    )


def _waiting(seen: SessionData) -> Iterator[str]:
    """Yield sentences about ranks that wait for each other by their flight recorders, the root cause first."""
    told, stored = recorded.facts_of(seen), seen.results.finding
    waits = told.get("waits") or []
    wrong = stored[stored["code"].isin(("recording_hang", "recording_mismatch"))]["message"]
    every = [*waits, *map(str, wrong)]
    yield from every
    if told.get("dumps") and not every:
        yield (
            f"By the flight recorders of {format.count(told['dumps'], 'rank')} all entered and finished the same "
            "collectives: none waits for another."
            if told["last_calls"]
            else "It is unknown if ranks wait for each other: the flight recorders hold no collective."
        )


def _facts(seen: SessionData) -> list[tuple[str, str]]:
    environment, case, told = seen.session.environment, seen.numbers.iloc[0], recorded.facts_of(seen)
    ranks = f"{case['world_size']:,.0f}"
    if not told.get("size_known") and not told.get("alone"):
        ranks += " or more: no trace has the number"
    unknown = environment.get("unknown_versions") or {}
    return [
        ("imported", format.when(seen.session.started_utc)),
        ("parabench", seen.session.version),
        ("ranks", ranks),
        ("device", str(case["device"])),
        ("backend", str(case["backend"])),
        ("hosts", format.or_unknown(environment.get("host"))),
        ("GPUs of the first host", devices_text(environment) if environment.get("gpus") else format.UNKNOWN),
        *((name, f"{format.UNKNOWN}: {why}") for name, why in unknown.items()),
    ]


def _steps(seen: SessionData) -> Section | None:
    ranks = seen.once(recorded.rank_table)
    if ranks.empty and all(each["kind"] != "kineto" for each in recorded.facts_of(seen).get("files") or []):
        return None
    named = [part for part in STEP_PARTS if part != "other_s" and ranks[part].notna().any()]
    columns = (
        Column("Rank", "rank"),
        Column("Steps", "steps", "count"),
        Column("Step, ms", "step_s", "ms"),
        *(Column(STEP_PARTS[part].capitalize(), part, "ms") for part in named),
        Column("No name", "other_s", "ms"),
        Column("Communication", "communication_s", "ms"),
        Column("Exposed", "exposed_s", "ms"),
        Column("Share", "exposed_share", "percent", format.UNKNOWN),
    )
    whole = "The traces have no steps: each is one window."
    return Section(
        "steps",
        "Step breakdown by rank",
        f"{whole if recorded.is_whole(seen) else 'Medians over the recorded steps.'} Communication overlaps the parts. "
        "It is exposed while no kernel of the device computes, on a CPU no operator.",
        "No step was recorded: no trace has a rank, or an event with a time.",
        (table_of("Steps by rank", columns, ranks, closed=False),),
        reading="A step is the time between two calls of the profiler's step() on the host. Parts are annotations: "
        "torch's for DataLoader and optimizer, and yours with the names data, forward, backward and optimizer. Without "
        "them, forward is DDP's or FSDP's, without the loss, and backward ends with the last gradient.",
    )


_LATE = (
    Column("Collective", lambda row: f"{row['op']}, ranks {row['ranks']}"),
    Column("Bytes", "bytes", "count"),
    Column("Rank", "rank", WORDED),
    Column("Last in", lambda row: f"{row['last']:,} of {row['calls']:,}", WORDED),
    Column("Late, ms", "late_s", "ms"),
    Column("Total, ms", "total_s", "ms"),
)


def _late(seen: SessionData) -> Section | None:
    table = recorded.late_table(seen)
    if table.empty:
        return None
    # Rows without a delay are left out.
    table = table[(table["last"] > 0) | (table["total_s"] > 0.05 * table["total_s"].max())]
    return Section(
        "late",
        "Stragglers",
        "The delay of each rank after the first rank in the same collective: the median, and the sum of all calls.",
        tables=(table_of("Arrival by rank and collective", _LATE, table, closed=False),),
        reading="The table has collectives that all ranks of a group recorded and leave together. If the ranks share "
        "a clock, a rank enters when its kernel starts. Otherwise, its delay is the difference between its kernel and "
        "the longest one, because all end together.",
    )


def _timeline(seen: SessionData) -> Section | None:
    one = recorded.median_timeline(seen)
    if one is None:
        return None
    whole = recorded.is_whole(seen)
    window = "The whole trace" if whole else "The recorded step of median length"
    label = f"{'whole trace' if whole else f'step {one.step}'}: {format.milliseconds(one.length_s)}"
    panel = timeline_panel(one, label, "exposed communication", {"other_s": "no name"})
    return Section(
        "timeline",
        "Timeline of one step",
        f"{window}. Each rank shows the parts of its step (hatched: exposed communication), and below them its "
        "collectives.",
        "The difference of the ranks' clocks is unknown, so their times are not drawn on one axis.",
        panels=[] if recorded.facts_of(seen).get("clocks") is False else [replace(panel, case="")],
        reading="A collective includes the time that it waits for later ranks. At most "
        f"{MOST_RANKS} of {len(one.ranks)} ranks are drawn.",
    )


def _group(row: dict[Any, Any]) -> str:
    if isinstance(row["ranks"], str):
        return row["ranks"]
    return f"{row['group_size']:.0f} ranks" if format.known(row["group_size"]) else format.UNKNOWN


_CALL = (
    Column("Operation", "op"),
    Column("Ranks", _group),
    Column("dtype", "dtype", unknown=format.UNKNOWN),
    Column("Bytes", "bytes", "count"),
    Column("Recorded by", lambda row: format.count(int(row["seen"]), "rank"), WORDED),
)


def _calls(seen: SessionData) -> Section | None:
    table = recorded.call_kinds(seen)
    if table.empty and not len(recorded.slowest_lengths(seen)):
        return None
    columns = (
        *_CALL,
        Column("A step", "per_step", "count"),
        Column("Took, ms", "duration_s", "ms"),
        Column("Shortest, ms", "shortest_s", "ms"),
        Column("Algorithm, GB/s", "algbw", "digits"),
        Column("Bus, GB/s", "busbw", "digits"),
    )
    return Section(
        "calls",
        "Collectives in the steps",
        "By operation, group, size and type. The longest in total come first.",
        "No collective was recorded in a step.",
        (table_of("Collectives in the steps", columns, table, closed=False),),
        reading="Took is the median over ranks and calls, with the wait for later ranks. Shortest is the time of the "
        "rank that came last, and gives the bandwidths, as nccl-tests defines them. They need all ranks of the group. "
        "A kernel without a record of its call has only the name of the kernel.",
    )


_LAST = (
    Column("Group", "group"),
    Column("Last call", "op"),
    Column("Ranks", "ranks"),
    Column("State", lambda row: f"{row['state']}{', over' if row['finished'] else ''}"),
    Column("Number", "number", "count"),
)
_HELD = (*_CALL, Column("Calls", "calls", "count"), Column("Took, ms", "duration_s", "ms"))


def _flight(seen: SessionData) -> Section | None:
    table, last = recorded.flight_table(seen), recorded.facts_of(seen).get("last_calls") or []
    if table.empty and not last:
        return None
    return Section(
        "flight",
        "Flight recorder",
        "The last call of each rank in each group, and the calls that the recorders hold, counted on one rank.",
        tables=(
            table_of("Last calls", _LAST, last, closed=False),
            table_of("Calls", _HELD, table, closed=False),
        ),
        reading="Calls of a group have the same numbers on all its ranks. A rank with a smaller number has not entered "
        "the call in progress on the others. Durations are known if TORCH_NCCL_ENABLE_TIMING was set.",
    )


_FILES = (
    Column("File", "file"),
    Column("Kind", "kind"),
    Column("Host", "host", unknown=format.UNKNOWN),
    Column("Rank", lambda row: f"{row['rank']:.0f}" if format.known(row["rank"]) else format.UNKNOWN, WORDED),
    Column("Steps", "steps", "count"),
    Column("Calls", "calls", "count"),
)


def _files(seen: SessionData) -> Section:
    told = recorded.facts_of(seen)
    more = told.get("not_read")
    caption = f"{format.count(int(more), 'other file')} in the folder: none of a known kind." if more else ""
    table = table_of("Files", _FILES, told.get("files") or [], closed=False)
    return Section("files", "Files", caption, "No file is recorded.", (table,))


# The sections of the page, in their order.
SECTIONS: Makers = {
    "flight": _flight, "steps": _steps, "late": _late, "timeline": _timeline, "calls": _calls, "nccl": nccl_section,
    "files": _files,
}  # fmt: skip
