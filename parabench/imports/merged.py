"""Write the recordings of all ranks as one trace on one clock, for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parabench.errors import UsageError
from parabench.files import replacing
from parabench.imports import Folder, flight_recorder, kineto, stream
from parabench.imports.into_store import launch_of
from parabench.imports.recording import Recording

# Numbers of processes of one rank, and of the threads of its flight recorder.
_OF_A_RANK = 1000


def write_merged(folder: Folder, out: Path) -> list[str]:
    """Write the events of a folder's traces and dumps to `out`, whole or not at all; returns what to print.

    Raises UsageError if nothing in the folder has times, or `out` cannot be written.
    """
    launch = launch_of(folder)
    kept = {each["file"] for each in launch.facts["recorded"]["files"]}
    found = [one for one in folder.recordings if one.file in kept and one.rank is not None]
    found = [one for one in found if one.kind == kineto.NAME or len(one.calls)]
    if not found:
        raise UsageError(f"{folder.path} holds nothing with a time and a rank: give a folder of traces or dumps")
    traces = [one for one in found if one.kind == kineto.NAME]
    zero = min(one.base_ns for one in traces) if traces else min(one.zero_ns for one in found)
    warnings = [each.message for each in launch.findings if each.code in ("recording_clocks", "recording_ranks")]
    head = {"displayTimeUnit": "ms", "otherData": {"zero_s": zero / 1e9, "warnings": warnings}}
    try:
        with replacing(out, 0o644) as part, part.open("w") as file:
            file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
            for at, event in enumerate(event for one in found for event in _events(folder, one, zero)):
                file.write(",\n" * (at > 0) + json.dumps(event, separators=(",", ":")))
            file.write("\n]}\n")
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror or error}; give another place with -o") from error
    ranks = {one.rank for one in found}
    clock = "" if traces and launch.facts["recorded"]["clocks"] else ", each on the clock of its host"
    return [f"{out}: {len(ranks)} ranks{clock}; open it in ui.perfetto.dev", *warnings]


def _events(folder: Folder, one: Recording, zero: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one rank's recording, with processes and flows of its own."""
    assert one.rank is not None
    first = (one.rank + 1) * _OF_A_RANK
    if one.kind == flight_recorder.NAME:
        recorder = first + _OF_A_RANK - 1
        yield _named(recorder, f"rank {one.rank}: flight recorder")
        threads: dict[str, int] = {}
        calls: Any = one.calls.dropna(subset="made_s")
        for call in calls.itertuples():
            yield {
                "ph": "i", "s": "t", "ts": (one.zero_ns - zero) / 1e3 + call.made_s * 1e6, "pid": recorder,
                "tid": threads.setdefault(call.group, first + len(threads)), "name": call.must_match,
                "args": {"number": call.number, "state": call.state, "called": call.where, "group": call.group},
            }  # fmt: skip
        return
    path = folder.path / one.file if folder.path.is_dir() else folder.path
    # Perfetto shows threads best if their numbers are unique, too.
    processes: dict[str, int] = {}
    threads_of: dict[tuple[int, str], int] = {}
    later = (one.base_ns - zero) / 1e3
    for key, event in stream.members(path, "traceEvents"):
        if key != "traceEvents" or not isinstance(event, dict) or "ph" not in event:
            continue
        pid = event["pid"] = processes.setdefault(str(event.get("pid")), first + len(processes))
        event["tid"] = threads_of.setdefault((pid, str(event.get("tid"))), first * _OF_A_RANK + len(threads_of))
        if event["ph"] == "M":
            if event.get("name") == "process_name":
                label = (event.get("args") or {}).get("name")
                yield _named(pid, f"rank {one.rank}: {label}")
            elif event.get("name") == "thread_name":
                yield event
            continue
        if (at := kineto.microseconds(event.get("ts"))) is not None:
            if event["ph"] in ("s", "t", "f"):
                event["id"] = f"{one.rank}.{event.get('id')}"
            yield event | {"ts": at + later}


def _named(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "ts": 0, "pid": process, "tid": process, "name": "process_name", "args": {"name": name}}
