"""Write one instrumented step of all ranks as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is the Trace Event Format's JSON: events with `ph`, `ts` in microseconds, `pid`, `tid` and `name`. A process
is a rank. Its threads are the step's parts, the time that training was blocked, and lanes for each group and algorithm,
because slices of one thread must not overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment import nodes
from parabench.analysis.session import SessionData
from parabench.analysis.stats.intervals import union
from parabench.analysis.step.timeline import lanes
from parabench.errors import UsageError, did_you_mean
from parabench.files import write_whole
from parabench.store.record import FIRST_REPETITION, TRACES, WAIT, Phase
from parabench.store.results import records

Event = dict[str, Any]

# Threads of a rank; its lanes of communication come after. Perfetto takes process and thread 0 for the idle task, and
# handles threads best if their numbers are unique.
STEP, WAITING, LANES = 1, 2, 10
THREADS = 1000
# The devices' processes come after the ranks', by node.
DEVICES, DEVICES_OF_A_NODE = 100_000, 1000


def write_trace(
    seen: SessionData, case: str, out: Path, launch: int | None = None, step: int | None = None
) -> list[str]:
    """Write the trace of a configuration's step to `out`. Return lines for the terminal: file, step, missing parts.

    `case` is an id, the beginning of an id, or a label. The default launch has the median number. The default step is
    the instrumented step of median length. Raises UsageError.
    """
    chosen = choose(seen, case, launch, step)
    case_id, launch_id, step = chosen
    facts = seen.facts[launch_id]
    lines = [str(out), f"{seen.labels[case_id]}: step {step} of launch {launch_id}; open it in ui.perfetto.dev"]
    if _began_s(facts) is None:
        lines.append("no memory is drawn: the start of the launch is unknown")
    lines += filter(None, [nodes.clocks_text([facts])])
    if profile := facts.get("profile"):
        files = ", ".join(str(seen.results.path.parent / TRACES / each["file"]) for each in profile)
        lines.append(f"torch.profiler's own traces of this launch: {files}")
    # Cells of tables may have NumPy's types.
    text = json.dumps(trace(seen, chosen), allow_nan=False, separators=(",", ":"), default=lambda cell: cell.item())
    write_whole(out, text, "trace", "give another file with -o")
    return lines


def choose(seen: SessionData, case: str, launch: int | None = None, step: int | None = None) -> tuple[str, int, int]:
    """Return the ids of a configuration and a launch, and a step; see `write_trace`. Raises UsageError."""
    seen.session.require("training", seen.results.path)
    labels = seen.labels
    named = [key for key, label in labels.items() if case in (key, label)]
    found = named or [key for key in labels if key.startswith(case)]
    if len(found) > 1:
        raise UsageError(f"configuration {case!r} is not one configuration; it may be {format.listed(sorted(found))}")
    if not found:
        raise UsageError(
            f"configuration {case!r} is not in session {seen.session.label or seen.session.id}; "
            f"{did_you_mean(case, [*labels, *labels.values()], most=3, cutoff=0.4)}"
            f"give an id, the beginning of one, or a label: it has {format.listed(labels.values()) or 'none'}"
        )
    case_id, label = found[0], labels[found[0]]
    launches = seen.numbers[(seen.numbers["case"] == case_id) & (seen.numbers["repetition"] >= FIRST_REPETITION)]
    spans = seen.results.span
    spans = spans[spans["launch_id"].isin(launches["launch_id"]) & (spans["name"] != WAIT)]
    launches = launches[launches["launch_id"].isin(spans["launch_id"])]
    if launches.empty:
        raise UsageError(f"{label} has no instrumented steps in this session; run it with --instrumented 1 or more")
    counted = launches[launches["counted"]] if launches["counted"].any() else launches
    numbers = (counted if launch is None else launches).set_index("launch_id")["step_s"]
    launch = _median(numbers, launch, f"launch {launch} has no instrumented step of {label}")
    of_rank = spans[spans["launch_id"] == launch].groupby(["step", "rank"])
    lengths = (of_rank["end_s"].max() - of_rank["start_s"].min()).groupby("step").max()
    step = _median(lengths, step, f"step {step} of launch {launch} is not instrumented")
    return case_id, launch, step


def _began_s(facts: Mapping[str, Any]) -> float | None:
    """Return the start of a launch on the ranks' shared clock, in seconds; None if unknown."""
    return format.number_or_none((facts.get("clock") or {}).get("began_s"))


def _median(values: pd.Series, given: int | None, missing: str) -> int:
    """Return `given`, or by default the index of the median value (the lower of two).

    Raises UsageError, which begins with `missing`, if `given` is not in the index.
    """
    if given is None:
        return int(values.sort_values(kind="stable").index[(len(values) - 1) // 2])
    if given not in values.index:
        raise UsageError(f"{missing}; use one of {', '.join(map(str, sorted(values.index)))}")
    return given


def trace(seen: SessionData, chosen: tuple[str, int, int]) -> dict[str, Any]:
    """Return the trace of what `choose` returns as JSON data. Its clock starts at the first event."""
    case_id, launch_id, step = chosen
    facts = seen.facts[launch_id]
    spans, calls = (
        table[(table["launch_id"] == launch_id) & (table["step"] == step)]
        for table in (seen.results.span, seen.results.collective)
    )
    calls = calls[(calls["phase"] == Phase.INSTRUMENT) & calls["start_s"].notna()]
    events: list[Event] = []
    for rank in sorted(map(int, spans["rank"].unique())):
        events += _named("process", rank + 1, 0, nodes.rank_text(rank, facts), rank)
        events += _step(rank, spans[spans["rank"] == rank], step)
        events += _communication(rank, calls[calls["rank"] == rank], facts.get("buckets") or [])
    events += _memory(seen, launch_id, spans["start_s"].min(), spans["end_s"].max())
    zero = min(event["ts"] for event in events if event["ph"] != "M")
    for event in events:
        # Whole nanoseconds, so that adjacent slices of a thread do not overlap by rounding.
        begin = 0 if event["ph"] == "M" else round((event["ts"] - zero) * 1e9)
        if "end" in event:
            event["dur"] = (round((event.pop("end") - zero) * 1e9) - begin) / 1e3
        event["ts"] = begin / 1e3
    about = {"case": case_id, "label": seen.labels[case_id], "launch": launch_id, "step": step}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about | {"zero_s": zero}}


def _step(rank: int, spans: pd.DataFrame, step: int) -> Iterator[Event]:
    """Yield the step with its parts inside, and the time that training was blocked."""
    parts, waits = spans[spans["name"] != WAIT], spans[spans["name"] == WAIT]
    yield from _named("thread", rank + 1, STEP, "step")
    yield _event("X", rank, STEP, f"step {step}", parts["start_s"].min(), "step", end=parts["end_s"].max())
    for part in records(parts.sort_values("start_s", kind="stable")):
        yield _event("X", rank, STEP, part["name"], part["start_s"], "step", end=part["end_s"])
    yield from _named("thread", rank + 1, WAITING, "waiting")
    blocked = union([0] * len(waits), waits["start_s"], waits["end_s"])
    for begin, end in zip(blocked.start.tolist(), blocked.end.tolist(), strict=True):
        yield _event("X", rank, WAITING, "blocked", begin, WAIT, end=end)


def _communication(rank: int, calls: pd.DataFrame, layout: list[dict[str, Any]]) -> Iterator[Event]:
    """Yield calls on lanes, an arrow from the time of each call to its start, and the times when buckets are ready."""
    thread = LANES
    calls = calls.sort_values("start_s", kind="stable").astype({"start_s": float})
    calls["end_s"] = calls["start_s"] + pd.to_numeric(calls["duration_s"]).fillna(0.0)
    for (ranks, algorithm), own in calls.groupby(["ranks", "algorithm"], dropna=False):
        group, found = ranks if isinstance(ranks, str) else format.UNKNOWN, lanes(own["start_s"], own["end_s"])
        for lane in range(max(found) + 1):
            name = f"communication {group} {algorithm}" + f" ({lane + 1})" * (lane > 0)
            yield from _named("thread", rank + 1, thread + lane, name)
        for call, lane in zip(records(own), found, strict=True):
            yield from _call(rank, thread + lane, call, layout)
        thread += max(found) + 1


def _call(rank: int, thread: int, call: dict[Any, Any], layout: list[dict[str, Any]]) -> Iterator[Event]:
    bucket = int(call["bucket"]) if format.known(call["bucket"]) else None
    names = ("op", "algorithm", "ranks", "bytes", "dtype", "seq")
    # A recording may lack the size, the type and the ranks.
    about = {name: None if pd.isna(call[name]) else call[name] for name in names} | {"bucket": bucket}
    begin, name = call["start_s"], f"{call['op']}" + (f" of bucket {bucket}" if bucket is not None else "")
    if format.known(call["duration_s"]):
        yield _event("X", rank, thread, name, begin, "communication", about, end=call["end_s"])
        if format.known(call["made_s"]) and call["made_s"] <= begin:
            arrow: dict[str, Any] = {"id": (rank << 32) + int(call["seq"])}
            yield _event("s", rank, STEP, "called", call["made_s"], "called", **arrow)
            # bp "e": it points to the slice that encloses this time, not to the next one.
            yield _event("f", rank, thread, "called", begin, "called", bp="e", **arrow)
    else:
        yield _event("i", rank, thread, f"{name}, its end unknown", begin, "communication", about, s="t")
    if bucket is not None and format.known(call["ready_s"]):
        content = layout[bucket] if bucket < len(layout) else {"bytes": call["bytes"], "parameters": None}
        yield _event("i", rank, STEP, f"bucket {bucket} ready", call["ready_s"], "bucket", content, s="t")


def _memory(seen: SessionData, launch_id: int, begin: float, end: float) -> Iterator[Event]:
    """Yield the memory of ranks and devices, from the last reading before the step to the first one after it."""
    began_s = _began_s(seen.facts[launch_id])
    if began_s is None:
        return
    several = nodes.several_nodes(seen.session.environment)
    host, device = seen.results.host_sample, seen.results.device_sample
    # A device's memory with a rank is the share of one process.
    host, device = host[host["rank"].notna()], device[device["rank"].isna()]
    for rows, by, metric in ((host, "rank", "rss_bytes"), (device, "device", "used_bytes")):
        own = rows[(rows["launch_id"] == launch_id) & (rows["metric"] == metric) & rows["value"].notna()]
        places: Any = own.astype({"node": int, by: int}).groupby(["node", by])
        for (node, number), readings in places:
            at = began_s + readings["t_s"].astype(float)
            shown = ~((at < at[at <= begin].max()) | (at > at[at >= end].min()))
            pid = number + 1 if by == "rank" else number + DEVICES + node * DEVICES_OF_A_NODE
            if by == "device" and shown.any():
                yield from _named("process", pid, 0, nodes.device_text(number, node, several), pid)
            for t_s, value in zip(at[shown], readings["value"][shown], strict=True):
                yield {"ph": "C", "ts": t_s, "pid": pid, "tid": pid, "name": "memory", "args": {metric: float(value)}}


def _event(
    ph: str, rank: int, thread: int, name: str, ts: float, kind: str, args: Mapping[str, Any] | None = None, **more: Any
) -> Event:
    place = {"pid": rank + 1, "tid": (rank + 1) * THREADS + thread}
    return {"ph": ph, "ts": ts, "name": name, "cat": kind, "args": dict(args or {})} | place | more


def _named(kind: str, pid: int, thread: int, name: str, order: int | None = None) -> Iterator[Event]:
    """Yield the name and the sort index of a process or thread."""
    common = {"ph": "M", "ts": 0, "pid": pid, "tid": pid * THREADS + thread if thread else pid}
    yield common | {"name": f"{kind}_name", "args": {"name": name}}
    yield common | {"name": f"{kind}_sort_index", "args": {"sort_index": thread if order is None else order}}
