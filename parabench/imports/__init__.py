"""Read folders of profiler traces, flight recorder dumps and logs. Nothing in the files is executed.

A reader is a function that returns the `Recording` of a path. For a damaged file, it raises an error of `_DAMAGED`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parabench.errors import UsageError
from parabench.registry import Entry, load

if TYPE_CHECKING:
    from parabench.imports.recording import Recording

# The kind of a file is recognized from its first bytes.
_FIRST_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Entry):
    """The reader of a file format, and the pattern that identifies the format near the start of a file."""

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
        target="parabench.imports.nccl:read_tests",
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

# Errors that unexpected values in a damaged file cause.
_DAMAGED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, EOFError, RecursionError, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """The content of a folder: its recordings, the number of files of other kinds, and {damaged file: reason}."""

    path: Path
    recordings: list[Recording]
    others: int
    damaged: dict[str, str]


def read_folder(path: Path) -> Folder:
    """Read all recordings in a folder and its subfolders, sorted by name, or a single file.

    Links to other folders are not followed. Raises UsageError if no recording can be read.
    """
    if not path.exists():
        raise UsageError(f"--from {path} does not exist; give a folder with traces, dumps or logs")
    from parabench.imports.recording import Recording, content, text_of

    found, others, damaged = list[Recording](), 0, dict[str, str]()
    for file in [path] if path.is_file() else _files(path):
        name = file.name if file == path else str(file.relative_to(path))
        try:
            text = text_of(content(file, _FIRST_BYTES))
            kind = next((kind for kind, each in READERS.items() if re.search(each.pattern, text, re.MULTILINE)), None)
            if kind is None:
                others += 1
                continue
            recording = load(READERS, "reader", kind)(file)
            recording.file = name
            found.append(recording)
        except _DAMAGED as error:
            damaged[name] = _reason(error)
    if found:
        return Folder(path, found, others, damaged)
    for name, reason in damaged.items():
        raise UsageError(f"{path / name if path.is_dir() else path} cannot be read: {reason}; remove or replace it")
    kinds = "; ".join(f"{name} ({entry.summary})" for name, entry in READERS.items())
    holds = f"no trace, dump or log among its {others} files" if others else "no file"
    raise UsageError(f"--from {path} holds {holds}; it reads {kinds}")


def _reason(error: Exception) -> str:
    """Return the reason why a file is damaged, in one line."""
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
    expected = isinstance(error, (ValueError, OSError, EOFError, zlib.error))
    return reason if expected else f"a value is missing or of another type ({type(error).__name__}: {reason})"


def _files(path: Path) -> list[Path]:
    """Return the files below a folder, grouped by folder, without hidden files."""
    files = (each for each in path.rglob("[!.]*") if each.is_file())
    files = (each for each in files if not any(name.startswith(".") for name in each.relative_to(path).parts))
    return sorted(files, key=lambda each: (each.parent.parts, each.name))
