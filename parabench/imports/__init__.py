"""Recordings that others made: what reads each kind of file, and a folder of them as one.

A reader is a function of a path that returns a `Recording`, or raises UsageError for a file that is damaged; its entry
says by which members of a file's outermost JSON object, near its beginning, such a file is known. Nothing that is read
is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parabench.errors import UsageError
from parabench.registry import Entry, load

if TYPE_CHECKING:
    from parabench.imports.recording import Recording

# A folder with more files is no folder of recordings.
MOST_FILES = 20_000
# Within so many bytes a file tells what it is.
_LOOK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Entry):
    """A kind of recording. `keys` are names of which a file of it has one in the beginning; `pickled`: it may be a
    pickle instead of JSON, which is read as plain values alone."""

    keys: frozenset[str]
    pickled: bool = False


READERS: dict[str, Reader] = {
    "kineto": Reader(
        target="parabench.imports.kineto:read",
        summary="traces of torch.profiler, *.pt.trace.json or .gz",
        keys=frozenset({"traceEvents", "baseTimeNanoseconds", "distributedInfo"}),
    ),
    "flight recorder": Reader(
        target="parabench.imports.flight_recorder:read",
        summary="dumps of torch's flight recorder, nccl_trace_rank_*",
        keys=frozenset({"pg_config", "pg_status", "entries"}),
        pickled=True,
    ),
    "NCCL Inspector": Reader(
        target="parabench.imports.inspector:read",
        summary="JSON of NCCL's Inspector, *-pid*.log",
        keys=frozenset({"coll_perf"}),
    ),
}

_NAME = re.compile(r'"(\w{1,40})"\s*:')


@dataclass(frozen=True)
class Folder:
    """What a folder holds: its recordings by the path below it, and the files that are none."""

    path: Path
    recordings: list[Recording]
    others: list[str]


def read_folder(path: Path) -> Folder:
    """Every recording in the folder and those below it, by name. Links to other folders are not followed.

    Raises UsageError for no folder, for one without any recording, and for a recording that is damaged.
    """
    if not path.is_dir():
        raise UsageError(f"--from {path} is not a folder; give the one that the recordings are in")
    found, others = [], []
    for file in _files(path):
        name = str(file.relative_to(path))
        kind = kind_of(file)
        if kind is None:
            others.append(name)
            continue
        recording: Recording = load(READERS, "reader", kind)(file)
        recording.file = name
        found.append(recording)
    if not found:
        kinds = "; ".join(f"{name} ({entry.summary})" for name, entry in READERS.items())
        raise UsageError(
            f"--from {path} holds no recording among its {len(others)} files; it reads {kinds}"
            if others
            else f"--from {path} holds no file; it reads {kinds}"
        )
    return Folder(path, found, others)


def kind_of(path: Path) -> str | None:
    """The name of the reader of a file; None for what is no recording. Raises UsageError for what cannot be opened."""
    from parabench.imports import literals, stream

    if not path.is_file():
        return None
    raw = stream.beginning(path, _LOOK_BYTES)
    if literals.begins(raw):
        return next(name for name, entry in READERS.items() if entry.pickled)
    if not raw.lstrip().startswith(b"{"):
        return None
    names = set(_NAME.findall(raw.decode(errors="replace")))
    return next((name for name, entry in READERS.items() if names & entry.keys), None)


def _files(path: Path) -> Iterator[Path]:
    """The files below a folder in the order of their names, hidden ones left out."""
    count = 0
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                count += 1
                if count > MOST_FILES:
                    raise UsageError(f"--from {path} holds more than {MOST_FILES:,} files; give the recordings' folder")
                yield Path(folder) / name
