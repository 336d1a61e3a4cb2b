"""One instrumented step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open, all ranks on one page.

The format is the Trace Event Format's JSON: events with `ph`, `ts` in microseconds, `pid`, `tid` and `name`. A process
is a rank; its threads are the step's parts, where training was blocked, and a lane for each group and algorithm, more
where calls overlap, because slices of one thread must nest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.analysis.stats.intervals import union
from parabench.errors import UsageError, did_you_mean
from parabench.files import write_whole
from parabench.store.record import FIRST_BLOCK, TRACES, WAIT, Phase

Event = dict[str, Any]

# Threads of a rank; its lanes of communication come after. Perfetto takes process and thread 0 for the idle task, and
# threads best when their numbers are unique.
STEP, STANDS = 1, 2
LANES = 10
THREADS = 1000
# The devices' processes come after the ranks', each node's after those of the node before.
DEVICES, DEVICES_OF_A_NODE = 100_000, 1000


@dataclass(frozen=True)
class Choice:
    """Which step is shown: of a case, of one of its launches. `facts` are the launch's."""

    case_id: str
    label: str
    launch_id: int
    step: int
    facts: dict[str, Any]


def write_trace(
    seen: SessionData, case: str, out: Path, launch: int | None = None, step: int | None = None
) -> list[str]:
    """Write the trace of a case's step to `out`, whole or not at all; returns what to tell: file, step, what lacks.

    `case` is an id, the beginning of one, or a label. Default: of the case's launches the one whose number is the
    median, of its instrumented steps the one whose length is. Raises UsageError.
    """
    chosen = choose(seen, case, launch, step)
    lines = [str(out), f"{chosen.label}: step {chosen.step} of launch {chosen.launch_id}; open it in ui.perfetto.dev"]
    if _began(chosen) is None:
        lines.append("no memory is drawn: the launch does not tell when it began")
    if agree := nodes.clocks_said([chosen.facts]):
        lines.append(agree)
    if profile := chosen.facts.get("profile"):
        folder = seen.results.path.parent / TRACES
        lines.append(
            f"torch.profiler's own traces of this launch: {', '.join(str(folder / p['file']) for p in profile)}"
        )
    text = json.dumps(trace(seen, chosen), allow_nan=False, separators=(",", ":"))
    write_whole(out, text, "trace", "give another file with -o")
    return lines


def choose(seen: SessionData, case: str, launch: int | None = None, step: int | None = None) -> Choice:
    """The step that is meant. Raises UsageError, with what there is."""
    case_id, label = _case(seen, case)
    launches = seen.numbers[(seen.numbers["case"] == case_id) & (seen.numbers["repetition"] >= FIRST_BLOCK)]
    spans = seen.results.span
    spans = spans[spans["launch_id"].isin(launches["launch_id"]) & (spans["name"] != WAIT)]
    launches = launches[launches["launch_id"].isin(spans["launch_id"])]
    if launches.empty:
        raise UsageError(f"{label} has no instrumented steps in this session; run it with --instrumented 1 or more")
    there = sorted(launches["launch_id"])
    if launch is None:
        good = launches[launches["launch_id"].isin(seen.counted["launch_id"])]
        launch = _median(good if len(good) else launches, "step_s", "launch_id")
    elif launch not in there:
        raise UsageError(
            f"launch {launch} has no instrumented step of {label}; use one of {', '.join(map(str, there))}"
        )
    of_step = spans[spans["launch_id"] == launch].groupby(["step", "rank"]).agg({"start_s": "min", "end_s": "max"})
    steps = (of_step["end_s"] - of_step["start_s"]).groupby("step").max().rename("step_s").reset_index()
    if step is None:
        step = _median(steps, "step_s", "step")
    elif step not in set(steps["step"]):
        raise UsageError(
            f"step {step} of launch {launch} is not instrumented; use one of {', '.join(map(str, steps['step']))}"
        )
    return Choice(case_id, label, launch, step, seen.facts[launch])


def _case(seen: SessionData, name: str) -> tuple[str, str]:
    labels = seen.labels
    named = [key for key, label in labels.items() if name in (key, label)]
    found = named or [key for key in labels if key.startswith(name)]
    if len(found) == 1:
        return found[0], labels[found[0]]
    if found:
        raise UsageError(f"case {name!r} is not one case; it may be {format.listed(sorted(found))}")
    raise UsageError(
        f"case {name!r} is not in session {seen.session.label or seen.session.id}; "
        f"{did_you_mean(name, [*labels, *labels.values()], most=3, cutoff=0.4)}"
        f"give an id, the beginning of one, or a label: it has {format.listed(labels.values()) or 'none'}"
    )


def _median(table: pd.DataFrame, by: str, of: str) -> int:
    """`of` in the row whose `by` is the median; of two in the middle the lower."""
    ordered = table.sort_values(by, kind="stable")
    return int(ordered[of].iloc[(len(ordered) - 1) // 2])


def trace(seen: SessionData, chosen: Choice) -> dict[str, Any]:
    """The trace as JSON holds it. Its clock begins with the first event."""
    events = list(_events(seen, chosen))
    zero = min(event["ts"] for event in events if event["ph"] != "M")
    for event in events:
        # Whole nanoseconds, so that what follows closely on a thread does not overlap by rounding.
        begin = 0 if event["ph"] == "M" else round((event["ts"] - zero) * 1e9)
        if "end" in event:
            event["dur"] = (round((event.pop("end") - zero) * 1e9) - begin) / 1e3
        event["ts"] = begin / 1e3
    told = {"case": chosen.case_id, "label": chosen.label, "launch": chosen.launch_id, "step": chosen.step}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": told | {"zero_s": zero}}


def _events(seen: SessionData, chosen: Choice) -> Iterator[Event]:
    """All events, their `ts` still in seconds of the shared clock."""
    spans, calls = (_of(table, chosen) for table in (seen.results.span, seen.results.collective))
    calls = calls[calls["phase"] == Phase.INSTRUMENT]
    for rank in sorted({int(each) for each in spans["rank"]}):
        own = spans[spans["rank"] == rank]
        yield from _named("process", rank + 1, 0, nodes.rank_said(rank, chosen.facts), rank)
        yield from _step(rank, own, chosen.step)
        yield from _communication(rank, calls[calls["rank"] == rank], chosen.facts)
    begin, end = spans["start_s"].min(), spans["end_s"].max()
    yield from _memory(seen, chosen, begin, end)


def _of(table: pd.DataFrame, chosen: Choice) -> pd.DataFrame:
    return table[(table["launch_id"] == chosen.launch_id) & (table["step"] == chosen.step)]


def _step(rank: int, spans: pd.DataFrame, step: int) -> Iterator[Event]:
    """The step with its parts inside, and where training was blocked."""
    parts, waits = spans[spans["name"] != WAIT], spans[spans["name"] == WAIT]
    yield from _named("thread", rank + 1, STEP, "step")
    yield _slice(rank, STEP, f"step {step}", parts["start_s"].min(), parts["end_s"].max(), "step")
    for part in parts.sort_values("start_s", kind="stable").to_dict("records"):
        yield _slice(rank, STEP, part["name"], part["start_s"], part["end_s"], "step")
    yield from _named("thread", rank + 1, STANDS, "waiting")
    stood = union([0] * len(waits), waits["start_s"], waits["end_s"])
    for begin, end in zip(stood.start.tolist(), stood.end.tolist(), strict=True):
        yield _slice(rank, STANDS, "blocked", begin, end, WAIT)


def _communication(rank: int, calls: pd.DataFrame, facts: dict[str, Any]) -> Iterator[Event]:
    """Yield calls on lanes, with an arrow from where each was made, and when buckets were ready."""
    layout = facts.get("buckets") or []
    thread = LANES
    for (ranks, algorithm), own in calls.groupby(["ranks", "algorithm"], sort=True, dropna=False):
        lanes: list[float] = []
        for call in own.dropna(subset="start_s").sort_values("start_s", kind="stable").to_dict("records"):
            begin, ended = call["start_s"], format.known(call["duration_s"])
            end = begin + (call["duration_s"] if ended else 0.0)
            lane = next((at for at, busy in enumerate(lanes) if busy <= begin), len(lanes))
            if lane == len(lanes):
                name = f"communication {ranks if isinstance(ranks, str) else format.UNKNOWN} {algorithm}"
                yield from _named("thread", rank + 1, thread + lane, name + f" ({lane + 1})" * (lane > 0))
                lanes.append(end)
            lanes[lane] = end
            # A recording may lack the size, the type and the ranks.
            names = ("op", "algorithm", "ranks", "bytes", "dtype", "seq")
            told = {name: None if pd.isna(call[name]) else call[name] for name in names}
            bucket = int(call["bucket"]) if format.known(call["bucket"]) else None
            told |= {} if bucket is None else {"bucket": bucket}
            name = str(call["op"]) if bucket is None else f"{call['op']} of bucket {bucket}"
            if ended:
                yield _slice(rank, thread + lane, name, begin, end, "communication", **told)
            else:
                yield _instant(rank, thread + lane, f"{name}, its end unknown", begin, "communication", **told)
            if ended and format.known(call["made_s"]) and call["made_s"] <= begin:
                arrow = {"name": "called", "cat": "called", "id": (rank << 32) + int(call["seq"])}
                yield {**arrow, "ph": "s", "ts": call["made_s"], **_place(rank, STEP)}
                # bp "e": it points to the slice that encloses this time, not to the next one.
                yield {**arrow, "ph": "f", "bp": "e", "ts": begin, **_place(rank, thread + lane)}
            if bucket is not None and format.known(call["ready_s"]):
                holds = layout[bucket] if bucket < len(layout) else {"bytes": call["bytes"], "parameters": None}
                yield _instant(rank, STEP, f"bucket {bucket} ready", call["ready_s"], "bucket", **holds)
        thread += len(lanes)


def _memory(seen: SessionData, chosen: Choice, begin: float, end: float) -> Iterator[Event]:
    """What ranks and devices held during the step, from the last reading before it to the first one after it."""
    began = _began(chosen)
    if began is None:
        return
    of_several = nodes.several_nodes(seen.session.environment)
    for table, metric, who in (("host_sample", "rss_bytes", "rank"), ("device_sample", "used_bytes", "device")):
        rows: pd.DataFrame = getattr(seen.results, table)
        rows = rows[(rows["launch_id"] == chosen.launch_id) & (rows["metric"] == metric) & rows["value"].notna()]
        # A device's memory that is one process' share has that rank.
        rows = rows[rows["rank"].notna() if who == "rank" else rows["rank"].isna()]
        places = zip(rows["node"], rows[who], strict=True)
        for node, number in sorted({(int(node), int(each)) for node, each in places}):
            own = rows[(rows["node"] == node) & (rows[who] == number)]
            at = began + own["t_s"].astype(float)
            first, last = at[at <= begin].max(), at[at >= end].min()
            shown = own[~((at < first) | (at > last))]
            pid = number + (1 if who == "rank" else DEVICES + node * DEVICES_OF_A_NODE)
            if who == "device" and len(shown):
                yield from _named("process", pid, 0, nodes.device_said(number, node, of_several), pid)
            for t_s, value in zip(shown["t_s"], shown["value"], strict=True):
                yield {
                    "ph": "C", "ts": began + float(t_s), "pid": pid, "tid": pid, "name": "memory",
                    "args": {metric: float(value)},
                }  # fmt: skip


def _began(chosen: Choice) -> float | None:
    """When the launch began on the shared clock, in seconds; None where it does not tell."""
    began = (chosen.facts.get("clock") or {}).get("began_s")
    return float(began) if began is not None else None


def _place(rank: int, thread: int) -> dict[str, int]:
    return {"pid": rank + 1, "tid": (rank + 1) * THREADS + thread}


def _slice(rank: int, thread: int, name: str, begin: float, end: float, kind: str, **told: Any) -> Event:
    return {"ph": "X", "ts": begin, "end": end, "name": name, "cat": kind, "args": told} | _place(rank, thread)


def _instant(rank: int, thread: int, name: str, at: float, kind: str, **told: Any) -> Event:
    return {"ph": "i", "s": "t", "ts": at, "name": name, "cat": kind, "args": told} | _place(rank, thread)


def _named(what: str, pid: int, thread: int, name: str, order: int | None = None) -> Iterator[Event]:
    """The name of a process or thread, and its place on the page."""
    common = {"ph": "M", "ts": 0, "pid": pid, "tid": pid * THREADS + thread if thread else pid}
    yield common | {"name": f"{what}_name", "args": {"name": name}}
    yield common | {"name": f"{what}_sort_index", "args": {"sort_index": thread if order is None else order}}
