"""Files of NCCL's Inspector (NCCL's ext-profiler/inspector): JSON objects one after the other, one for each call."""

from __future__ import annotations

from pathlib import Path

from parabench.imports import stream
from parabench.imports.recording import MOST_RANKS, Recording, whole
from parabench.probes.nccl import MOST_BYTES, inspector_ops

NAME = "NCCL Inspector"
# By these members of its first object a file is known.
KEYS = frozenset({"coll_perf", "header"})


def read(path: Path) -> Recording:
    """What a file tells, of a large one its first part. Raises UsageError for one that cannot be read."""
    raw = stream.beginning(path, MOST_BYTES + 1)
    found = Recording(file=path.name, kind=NAME, device="cuda", backend="nccl")
    found.ops = inspector_ops(raw[:MOST_BYTES].decode(errors="replace"))
    # A communicator may have fewer ranks than there are.
    sizes = [size for each in found.ops if (size := whole(each["ranks"], MOST_RANKS))]
    found.world_size = max(sizes, default=None)
    if len(raw) > MOST_BYTES:
        found.unknown.append(f"only its first {MOST_BYTES >> 20} MiB were read")
    if not found.ops:
        found.unknown.append("it holds no call with a size and a number of ranks")
    return found
