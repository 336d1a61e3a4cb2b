"""Write the recordings of all ranks as one trace on one clock, for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parabench.errors import UsageError
from parabench.files import replacing
from parabench.imports import Folder, flight_recorder, kineto
from parabench.imports.into_store import launch_of
from parabench.imports.recording import Recording, content, parsed, text_of

# The numbers of processes that each rank has.
_PER_RANK = 1000

_Event = dict[str, Any]


def write_merged(folder: Folder, out: Path) -> list[str]:
    """Write the events of a folder's traces and dumps to `out`; return the lines to print.

    Raises UsageError if the folder has no times, or `out` cannot be written. Then `out` is unchanged.
    """
    launch = launch_of(folder)
    recorded = launch.facts["recorded"]
    kept = {each["file"] for each in recorded["files"] if each["rank"] is not None}
    found = [one for one in folder.recordings if one.file in kept]
    traces = [one for one in found if one.kind == kineto.NAME]
    dumps = [one for one in found if one.kind == flight_recorder.NAME and len(one.calls)]
    if not traces and not dumps:
        raise UsageError(f"{folder.path} holds nothing with a time and a rank: give a folder of traces or dumps")
    zero_ns = min(one.base_ns for one in traces) if traces else min(one.zero_ns for one in dumps)
    warnings = [each.message for each in launch.findings if each.code in ("recording_clocks", "recording_ranks")]
    head = {"displayTimeUnit": "ms", "otherData": {"zero_s": zero_ns / 1e9, "warnings": warnings}}
    try:
        with replacing(out, 0o644) as part, part.open("w") as file:
            file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
            comma = ""

            def write(event: _Event) -> None:
                nonlocal comma
                file.write(comma + json.dumps(event, separators=(",", ":")))
                comma = ",\n"

            for one in traces:
                path = folder.path / one.file if folder.path.is_dir() else folder.path
                parsed(text_of(content(path)), _converter(one, zero_ns, write))
            for one in dumps:
                _write_calls(one, zero_ns, write)
            file.write("\n]}\n")
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror or error}; give another place with -o") from error
    clock = "" if traces and recorded["clocks"] else ", each on the clock of its host"
    return [f"{out}: {len({one.rank for one in found})} ranks{clock}; open it in ui.perfetto.dev", *warnings]


def _converter(one: Recording, zero_ns: int, write: Callable[[_Event], None]) -> Callable[[_Event], _Event | None]:
    """Return a hook for `parsed` that writes the events of a rank's trace with ids that no other rank has."""
    first = _first_process(one)
    # Perfetto shows threads best if their numbers are unique, too.
    processes: dict[str, int] = {}
    threads: dict[tuple[int, str], int] = {}
    later_us = (one.base_ns - zero_ns) / 1e3

    def convert(event: _Event) -> _Event | None:
        if "ph" not in event:
            return event
        pid = event["pid"] = processes.setdefault(str(event.get("pid")), first + len(processes))
        event["tid"] = threads.setdefault((pid, str(event.get("tid"))), first * _PER_RANK + len(threads))
        if event["ph"] == "M":
            if event["name"] == "process_name":
                write(_named(pid, f"rank {one.rank}: {event['args'].get('name')}"))
            elif event["name"] == "thread_name":
                write(event)
        elif "ts" in event:
            if event["ph"] in ("s", "t", "f"):
                event["id"] = f"{one.rank}.{event.get('id')}"
            write(event | {"ts": float(event["ts"]) + later_us})
        return None

    return convert


def _write_calls(one: Recording, zero_ns: int, write: Callable[[_Event], None]) -> None:
    """Write the calls of a rank's flight recorder as events of a separate process."""
    first = _first_process(one)
    recorder = first + _PER_RANK - 1
    write(_named(recorder, f"rank {one.rank}: flight recorder"))
    threads: dict[str, int] = {}
    calls: Any = one.calls.dropna(subset="made_s")
    for call in calls.itertuples():
        write({
            "ph": "i", "s": "t", "ts": (one.zero_ns - zero_ns) / 1e3 + call.made_s * 1e6, "pid": recorder,
            "tid": threads.setdefault(call.group, first + len(threads)), "name": call.must_match,
            "args": {"number": call.number, "state": call.state, "called": call.where, "group": call.group},
        })  # fmt: skip


def _first_process(one: Recording) -> int:
    return ((one.rank or 0) + 1) * _PER_RANK


def _named(process: int, name: str) -> _Event:
    return {"ph": "M", "ts": 0, "pid": process, "tid": process, "name": "process_name", "args": {"name": name}}
