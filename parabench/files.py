"""Write files completely or not at all, and keep temporary files in a folder that is removed with its process.

Each process has a temporary folder and a lock on it (`flock`). The kernel releases the lock of a killed process, so the
next run can remove its folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parabench.errors import UsageError

# The first bytes of an SQLite file. A results database is never overwritten by a page or a trace.
SQLITE = b"SQLite format 3"

PREFIX = "parabench-run-"

# As the path of an output: the command prints the file, and nothing else.
STANDARD_OUTPUT = Path("-")

# A rank that writes to full shared memory is killed by SIGBUS, so less room than this is not used.
SHARED_MEMORY, LEAST_ROOM_BYTES = "/dev/shm", 16 * 2**20

# multiprocessing removes its own folder, which may be in ours, at -100; lower numbers come later.
AFTER_MULTIPROCESSING = -200

# The longest path of a unix socket, and what multiprocessing adds to a folder: /pymp-xxxxxxxx/listener-xxxxxxxx.
SOCKET_PATH_BYTES, SOCKET_NAME_BYTES = 107, 32

# {(process id, parent folder): the folder, and the descriptor that has the lock}. A forked process has no folder yet.
_held: dict[tuple[int, str], tuple[Path, int]] = {}


def shipped_folder(name: str) -> Path:
    """Return the path of the folder `suites` or `reports` that belongs to this parabench.

    It is inside the package in a wheel, and next to the package in a checkout.
    """
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def is_special(path: Path) -> bool:
    """Return whether a path is a device or a pipe, which must not be replaced."""
    return path.exists() and not path.is_file()


def hand_over_file(path: Path, text: str) -> None:
    """Write a file for another process, which never reads an incomplete file."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def write_whole(path: Path, content: str | bytes, what: str, remedy: str) -> None:
    """Write `content` to `path`, completely or not at all, and make its folder. `what` names the content in errors.

    Raises UsageError, which ends with `remedy`, if `path` is a database or cannot be written.
    """
    raw = content.encode() if isinstance(content, str) else content
    try:
        if is_special(path):
            path.write_bytes(raw)
            return
        whole = Path(os.path.realpath(path))  # a link stays a link
        if whole.is_file():
            with whole.open("rb") as file:
                if file.read(len(SQLITE)) == SQLITE:
                    raise UsageError(f"{path} is a database, not a {what}; {remedy}")
        whole.parent.mkdir(parents=True, exist_ok=True)
        with replacing(whole, 0o644) as part:  # 0600 would keep a web server or a colleague out
            part.write_bytes(raw)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error


@contextmanager
def replacing(whole: Path, mode: int = 0o600) -> Iterator[Path]:
    """Yield the path of a new file, which replaces `whole` at the end of the block unless the block raises."""
    handle, name = tempfile.mkstemp(dir=whole.parent, prefix=f".{whole.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(mode)
        part.replace(whole)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def shared_memory_folder() -> str | None:
    """Return a folder in memory, where writing does not delay measured steps; None if it is full or not writable."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        return None
    room = os.statvfs(SHARED_MEMORY)  # without a limit it has no blocks
    full = room.f_blocks and room.f_bavail * room.f_frsize < LEAST_ROOM_BYTES
    return None if full else SHARED_MEMORY


def temporary_folder() -> str | None:
    """Return the system's temporary folder; None if it has none that can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None


def check_own_folder() -> None:
    """Remove the folders of killed processes, and check that this process can write temporary files.

    Raises UsageError if it cannot, or if it cannot share locks with its ranks.
    """
    remove_abandoned()
    if temporary_folder() is None:
        memory = shared_memory_folder()
        if memory is None:
            raise UsageError(
                f"no temporary folder can be written: neither {SHARED_MEMORY} nor any that TMPDIR or the system names; "
                "set TMPDIR to one that can"
            )
        os.environ["TMPDIR"] = memory  # torch requires one when it is imported
    from multiprocessing import get_context

    try:
        own_folder()
        get_context("fork").Lock()  # the context "spawn" would start a process
    except OSError as error:
        raise UsageError(
            f"{SHARED_MEMORY} cannot be used: {error.strerror}; processes share locks there: make it writable, with "
            "enough room (docker run --shm-size 1g)"
        ) from error


def own_folder(where: str | None = None) -> Path:
    """Return the folder of this process in `where`, by default in memory.

    It is created on the first call, and removed when the process ends. Its name has the process id, for debugging.
    """
    where = where or shared_memory_folder() or tempfile.gettempdir()
    key = os.getpid(), where
    if key not in _held:
        _held[key] = _hold(where)
        from multiprocessing.util import Finalize  # takes 20 ms, which most commands do not need

        Finalize(None, _release, args=key, exitpriority=AFTER_MULTIPROCESSING)
    return _held[key][0]


@contextmanager
def launch_folder(where: str | None = None) -> Iterator[Path]:
    """Yield a new folder in the folder of this process, and remove it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="launch-", dir=own_folder(where), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def sockets_in_own_folder() -> Iterator[None]:
    """Let multiprocessing create its sockets in the folder of this process, within the block.

    If the path is too long for a socket, nothing changes.
    """
    folder, usual = str(own_folder()), tempfile.tempdir
    if len(os.fsencode(folder)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES:
        tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = usual


def remove_abandoned() -> None:
    """Remove the folders of this user's processes that have ended, and so have no lock."""
    for where in dict.fromkeys(filter(None, (SHARED_MEMORY, shared_memory_folder(), temporary_folder()))):
        for folder in Path(where).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # it is locked, or gone by now
                handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
                try:
                    if os.fstat(handle).st_uid == os.geteuid():
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(handle)


def _hold(where: str) -> tuple[Path, int]:
    """Create and lock a folder. Return (path, file descriptor that has the lock)."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=where))
        # Until it is locked, another process may remove it; then the next one is tried.
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # a file system without locks, where others cannot remove it either
                fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():
                return folder, handle
            os.close(handle)


def _release(pid: int, where: str) -> None:
    folder, handle = _held.pop((pid, where), (None, -1))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
