"""Several hosts on one machine for a test, and the proof that nothing of them is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.hosts import Host, NoNodes, hosts


@contextmanager
def cluster(count: int, rates: str | Sequence[str | None] | None = None) -> Iterator[tuple[Host, ...]]:
    """`hosts`, or a skipped test with the reason. Afterwards neither a namespace nor a process of them is left."""
    with ExitStack() as kept:
        with ExitStack() as stack:
            try:
                made = stack.enter_context(hosts(count, rates))
            except NoNodes as why:
                pytest.skip(str(why))
            own = {host.namespace for host in made} | {made[0].bridge}
            # Held open: the kernel gives their numbers to no other namespace.
            held = {os.fstat(kept.enter_context(Path("/run/netns", name).open()).fileno()).st_ino for name in own}
            yield made
        assert not own & namespaces()
        assert not processes_in(held)


def namespaces() -> set[str]:
    """The names of all on this machine, whoever made them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


def processes_in(numbers: set[int]) -> set[int]:
    """The ids of all processes whose network namespace has one of these inode numbers."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile, and one that has ended has no namespace. What root may not look at is none of ours.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if (process / "ns" / "net").stat().st_ino in numbers:
                found.add(int(process.name))
    return found
