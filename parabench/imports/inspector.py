"""Read files of NCCL's Inspector (NCCL's plugins/profiler/inspector): JSON objects one after the other, one for each
call or message."""

from __future__ import annotations

from pathlib import Path

from parabench.imports import stream
from parabench.imports.recording import MOST_RANKS, Recording, whole
from parabench.probes.nccl import MOST_BYTES, inspected

NAME = "NCCL Inspector"


def read(path: Path) -> list[Recording]:
    """Return the one recording in a file, of a large file its first part. Raises UsageError if it cannot be read."""
    found, text = opened(path, NAME)
    found.ops, broken = inspected(text)
    # A communicator may have fewer ranks than the job.
    sizes = [size for each in found.ops if (size := whole(each["ranks"], MOST_RANKS))]
    found.world_size = max(sizes, default=None)
    if broken:
        found.unknown.append(f"{broken:,} of its JSON objects cannot be read")
    if not found.ops:
        found.unknown.append("it holds no call with a size and a number of ranks")
    return [found]


def opened(path: Path, kind: str) -> tuple[Recording, str]:
    """Return an empty recording of NCCL, and the text of the file, of a large file its first part."""
    raw = stream.beginning(path, MOST_BYTES + 1)
    found = Recording(file=path.name, kind=kind, device="cuda", backend="nccl")
    if len(raw) > MOST_BYTES:
        found.unknown.append(f"only its first {MOST_BYTES >> 20} MiB were read")
    return found, stream.text(raw[:MOST_BYTES])
