"""Which processes have a lock on a file, as the kernel tells."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def holders(paths: Iterable[Path], table: Path = Path("/proc/locks")) -> list[str]:
    """`process 4711 (sqlite3)` of each other process that has locks on one of the files; none where the kernel does not
    say, as for one in another container or on another machine."""
    wanted = set()
    for path in paths:
        with contextlib.suppress(OSError):
            there = path.stat()
            wanted.add(f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}")
    found: dict[int, None] = {}
    with contextlib.suppress(OSError):
        for line in table.read_text().splitlines():
            words = line.split()
            # 1: POSIX  ADVISORY  WRITE 4711 00:1b:16885 120 120; "->" is who waits for it.
            if "->" not in words and len(words) >= 6 and words[5] in wanted:
                found[int(words[4])] = None
    return [f"process {pid} ({_name(pid)})" for pid in found if pid > 0 and pid != os.getpid()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
