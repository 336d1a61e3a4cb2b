"""Read profiler traces, flight recorder dumps and logs: one reader for each kind of file, and folders of files.

A reader is a function of a path that returns a `Recording`, or raises UsageError for a damaged file. Nothing
that is read is executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parabench.errors import UsageError
from parabench.registry import Entry, load

if TYPE_CHECKING:
    from parabench.imports.recording import Recording

# The kind of a file shows within so many bytes.
_LOOK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Entry):
    """A kind of recording, and a pattern that is found near the start of such a file."""

    pattern: str


# The first match decides.
READERS: dict[str, Reader] = {
    "kineto": Reader(
        target="parabench.imports.kineto:read",
        summary="traces of torch.profiler, *.pt.trace.json or .gz",
        pattern=r'"(traceEvents|baseTimeNanoseconds|distributedInfo)"\s*:|\A\s*\[\s*\{[^]]*"ph"\s*:',
    ),
    "flight recorder": Reader(
        target="parabench.imports.flight_recorder:read",
        summary="dumps of torch's flight recorder, nccl_trace_rank_*",
        pattern=r"pg_config|profiling_name",
    ),
    "NCCL Inspector": Reader(
        target="parabench.imports.nccl:read_inspector",
        summary="JSON of NCCL's Inspector, *-pid*.log",
        pattern=r'"(coll_perf|p2p_perf)"\s*:',
    ),
    "nccl-tests": Reader(
        target="parabench.imports.nccl_tests:read",
        summary="logs and JSON of nccl-tests and rccl-tests",
        pattern=r'"(nccl_version|average_bus_bandwidth)"\s*:'
        r"|^(\S+: ?)?#\s*(nThread \d+ nGpus|Collective test starting:|size +count +type)",
    ),
    "NCCL debug log": Reader(
        target="parabench.imports.nccl:read_debug",
        summary="logs with NCCL_DEBUG=INFO",
        pattern=r'^[^{"\n]*\bNCCL INFO ',
    ),
}

# Names of files that should hold something, and of archives.
_EXPECTED = re.compile(r"\.(json|log|pkl|pickle)(\.gz)?$|rank|dump|trace")
_ARCHIVE = re.compile(r"\.(zip|tar|tgz|tar\.\w+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Folder:
    """The content of a folder: its recordings, the number of files of other kinds, and {damaged file: reason}."""

    path: Path
    recordings: list[Recording]
    others: int
    damaged: dict[str, str]


def read_folder(path: Path) -> Folder:
    """Return the recordings in a folder and the folders below it, by name, or the one in a file.

    Links to other folders are not followed. Raises UsageError if no recording can be read.
    """
    from parabench.imports.recording import REMEDY

    if not path.exists():
        raise UsageError(f"--from {path} does not exist; give the folder that the recordings are in")
    found, others, errors = [], 0, dict[str, UsageError]()
    for file in [path] if path.is_file() else _files(path):
        name = file.name if file == path else str(file.relative_to(path))
        try:
            if (kind := kind_of(file)) is None:
                others += 1
                continue
            recording: Recording = load(READERS, "reader", kind)(file)
        except UsageError as error:
            errors[name] = error
            continue
        recording.file = name
        found.append(recording)
    if not found:
        kinds = "; ".join(f"{name} ({entry.summary})" for name, entry in READERS.items())
        what = f"no recording among its {others} files" if others else "no file"
        raise next(iter(errors.values()), UsageError(f"--from {path} holds {what}; it reads {kinds}"))
    damaged = {
        name: str(error).removeprefix(f"{path / name} cannot be read: ").removesuffix(f"; {REMEDY}")
        for name, error in errors.items()
    }
    return Folder(path, found, others, damaged)


def kind_of(path: Path) -> str | None:
    """Return the name of a file's reader; None if it is not a recording.

    Raises UsageError if it cannot be opened, or is empty under a name that promises a recording.
    """
    from parabench.imports import stream

    if _ARCHIVE.search(path.name):
        raise UsageError(f"{path} cannot be read: it is an archive; unpack it into a folder")
    raw = stream.beginning(path, _LOOK_BYTES)
    if not raw and _EXPECTED.search(path.name):
        raise stream.unreadable(path, "it is empty")
    text = stream.text(raw)
    return next((name for name, each in READERS.items() if re.search(each.pattern, text, re.MULTILINE)), None)


def _files(path: Path) -> list[Path]:
    """Return the files below a folder, those of each folder together, without hidden ones."""
    files = (each for each in path.rglob("[!.]*") if each.is_file())
    files = (each for each in files if not any(name.startswith(".") for name in each.relative_to(path).parts))
    return sorted(files, key=lambda each: (each.parent.parts, each.name))
