"""Read files that NCCL writes: those of its Inspector (plugins/profiler/inspector there), and its debug logs."""

from __future__ import annotations

from pathlib import Path

from parabench.imports import stream
from parabench.imports.recording import MOST_RANKS, Recording, whole
from parabench.probes.nccl import COMMUNICATOR, MOST_BYTES, inspected, parse_log

INSPECTOR, DEBUG = "NCCL Inspector", "NCCL debug log"


def read_inspector(path: Path) -> Recording:
    """Return the content of a file of the Inspector. Raises UsageError if it cannot be read."""
    found, text = opened(path, INSPECTOR)
    found.ops, broken = inspected(text)
    # A communicator may have fewer ranks than the job.
    found.world_size = max((size for each in found.ops if (size := whole(each["ranks"], MOST_RANKS))), default=None)
    if broken:
        found.unknown.append(f"{broken:,} of its JSON objects cannot be read")
    if not found.ops:
        found.unknown.append("it holds no call with a size and a number of ranks")
    return found


def read_debug(path: Path) -> Recording:
    """Return the content of a log of `NCCL_DEBUG=INFO`, of one process or many. Raises UsageError."""
    found, text = opened(path, DEBUG)
    found.log = parse_log(text)
    sizes = map(int, COMMUNICATOR.findall(text))
    found.world_size = max((size for size in sizes if size < MOST_RANKS), default=None)
    return found


def opened(path: Path, kind: str) -> tuple[Recording, str]:
    """Return an empty recording of NCCL, and the text of the file, of a large file its first part."""
    raw = stream.beginning(path, MOST_BYTES + 1)
    found = Recording(file=path.name, kind=kind, device="cuda", backend="nccl")
    if len(raw) > MOST_BYTES:
        found.unknown.append(f"only its first {MOST_BYTES >> 20} MiB were read")
    return found, stream.text(raw[:MOST_BYTES])
