"""Read the recordings of others: the reader of each kind of file, and a folder of files.

A reader is a function of a path that returns a list of `Recording`, or raises UsageError for a damaged file. Its entry
names members of the outermost JSON object that identify such a file. Nothing that is read is executed.
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

# A folder with more files is not a folder of recordings.
MOST_FILES = 20_000
# The kind of a file shows within so many bytes.
_LOOK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Entry):
    """A kind of recording. The outermost object of such a file has one of the names in `keys`, and its beginning one
    of the texts in `marks`, if there are any. A pickle with one of the marks is of the kind, too, and so is a text
    that is not JSON, one of whose lines begins with a match of `line`."""

    keys: frozenset[str] = frozenset()
    marks: tuple[str, ...] = ()
    line: str = ""


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
        marks=("pg_config", "profiling_name"),
    ),
    "NCCL Inspector": Reader(
        target="parabench.imports.nccl:read_inspector",
        summary="JSON of NCCL's Inspector, *-pid*.log",
        keys=frozenset({"coll_perf", "p2p_perf"}),
    ),
    "nccl-tests": Reader(
        target="parabench.imports.nccl_tests:read",
        summary="logs and JSON of nccl-tests and rccl-tests",
        keys=frozenset({"nccl_version", "average_bus_bandwidth"}),
        line=r"(\S+: ?)?#\s*(nThread \d+ nGpus|Collective test starting:|size +count +type)",
    ),
    "NCCL debug log": Reader(
        target="parabench.imports.nccl:read_debug",
        summary="logs with NCCL_DEBUG=INFO",
        line=r".*\bNCCL INFO ",
    ),
}

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]', re.DOTALL)
# Names of files that should hold something, and of archives.
_EXPECTED = re.compile(r"\.(json|log|pkl|pickle)(\.gz)?$|rank|dump|trace")
_ARCHIVE = re.compile(r"\.(zip|tar|tgz|tar\.\w+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Folder:
    """The content of a folder: its recordings, files of other kinds, and {damaged file: reason}, by the path below
    it."""

    path: Path
    recordings: list[Recording]
    others: list[str]
    damaged: dict[str, str]


def read_folder(path: Path) -> Folder:
    """Return the recordings in a folder and the folders below it, by name, or the one in a file.

    Links to other folders are not followed. Raises UsageError if no recording can be read.
    """
    from parabench.imports.recording import REMEDY

    if not path.exists():
        raise UsageError(f"--from {path} does not exist; give the folder that the recordings are in")
    found, others, damaged = [], [], {}
    first: UsageError | None = None
    for file in [path] if path.is_file() else _files(path):
        name = file.name if file == path else str(file.relative_to(path))
        try:
            kind = kind_of(file)
            if kind is None:
                others.append(name)
                continue
            recordings: list[Recording] = load(READERS, "reader", kind)(file)
        except UsageError as error:
            first = first or error
            damaged[name] = str(error).removeprefix(f"{file} cannot be read: ").removesuffix(f"; {REMEDY}")
            continue
        for document, recording in enumerate(recordings):
            recording.file = f"{name}, part {document + 1}" if document else name
            found.append(recording)
    if found:
        return Folder(path, found, others, damaged)
    if first is not None:
        raise first
    kinds = "; ".join(f"{name} ({entry.summary})" for name, entry in READERS.items())
    raise UsageError(
        f"--from {path} holds no recording among its {len(others)} files; it reads {kinds}"
        if others
        else f"--from {path} holds no file; it reads {kinds}"
    )


def kind_of(path: Path) -> str | None:
    """Return the name of a file's reader; None if it is not a recording.

    Raises UsageError if it cannot be opened, or is empty under a name that promises a recording.
    """
    from parabench.imports import literals, stream

    if not path.is_file():
        return None
    if _ARCHIVE.search(path.name):
        raise UsageError(f"{path} cannot be read: it is an archive; unpack it into a folder")
    raw = stream.beginning(path, _LOOK_BYTES)
    if not raw and _EXPECTED.search(path.name):
        raise stream.unreadable(path, "it is empty")
    text = stream.text(raw)
    pickled = literals.begins(raw)
    names = set() if pickled else _outermost(text.lstrip())
    if text.lstrip().startswith("[") and names >= {"ph", "ts"}:
        return "kineto"
    is_json = text.lstrip().startswith("{")
    for name, entry in READERS.items():
        marked = any(mark in text for mark in entry.marks)
        if (pickled or names & entry.keys) and (marked or (not entry.marks and not pickled)):
            return name
        if entry.line and not (pickled or is_json) and re.search(f"^{entry.line}", text, re.MULTILINE):
            return name
    return None


def _outermost(text: str) -> set[str]:
    """Return the names of the members of the outermost object, or of the objects in the outermost list."""
    depth, names = 0, set()
    level = {"{": 1, "[": 2}.get(text[:1])
    for token in _TOKEN.finditer(text if level else ""):
        if token[0] in ("{", "["):
            depth += 1
        elif token[0] in ("}", "]"):
            depth -= 1
        elif depth == level and token[2]:
            names.add(token[1])
    return names


def _files(path: Path) -> Iterator[Path]:
    """Yield the files below a folder in the order of their names, without hidden ones."""
    count = 0
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                count += 1
                if count > MOST_FILES:
                    raise UsageError(f"--from {path} holds more than {MOST_FILES:,} files; give the recordings' folder")
                yield Path(folder) / name
