"""Read files that NCCL writes: its debug logs, and the output of its Inspector (plugins/profiler/inspector there)."""

from __future__ import annotations

from pathlib import Path

from parabench.imports import stream
from parabench.imports.recording import Recording
from parabench.probes.nccl import COMMUNICATOR, MOST_BYTES, inspected, parse_log

INSPECTOR, DEBUG = "NCCL Inspector", "NCCL debug log"


def read_inspector(path: Path) -> Recording:
    """Return the content of a file of the Inspector."""
    found, text = opened(path, INSPECTOR)
    found.ops = inspected(text)
    # A communicator may have fewer ranks than the job.
    found.world_size = max((each["ranks"] for each in found.ops if each["ranks"]), default=None)
    if not found.ops:
        found.unknown.append("it holds no call with a size and a number of ranks")
    return found


def read_debug(path: Path) -> Recording:
    """Return the content of a log of `NCCL_DEBUG=INFO`, of one process or many."""
    found, text = opened(path, DEBUG)
    found.log = parse_log(text)
    found.world_size = max(map(int, COMMUNICATOR.findall(text)), default=None)
    return found


def opened(path: Path, kind: str) -> tuple[Recording, str]:
    """Return an empty recording of NCCL, and the text of the file. Large files are cut."""
    raw = stream.content(path, MOST_BYTES + 1)
    found = Recording(file=path.name, kind=kind, device="cuda", backend="nccl")
    if len(raw) > MOST_BYTES:
        found.unknown.append(f"only its first {MOST_BYTES >> 20} MiB were read")
    return found, stream.text(raw[:MOST_BYTES])
