"""The folder in which the ranks of one launch meet and leave what they saw. It lives as long as the launch."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_NAME = re.compile(r"parabench-(\d+)-")


def shared_memory_folder() -> str | None:
    """A folder in memory, so that no timed step waits for a disk; None: the usual temporary one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def launch_folder() -> Iterator[Path]:
    """A fresh folder, removed at the end. Its name holds this process' id, so that others can tell who left it."""
    with tempfile.TemporaryDirectory(
        prefix=f"parabench-{os.getpid()}-", dir=shared_memory_folder(), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def remove_abandoned() -> None:
    """Remove the folders of drivers that are gone: one that is killed cannot remove its own."""
    for folder in Path(shared_memory_folder() or tempfile.gettempdir()).iterdir():
        named = _NAME.match(folder.name)
        if named and not psutil.pid_exists(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)
