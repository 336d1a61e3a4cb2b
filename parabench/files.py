"""Files that are whole or not there at all, and folders that last as long as their process.

A file that a command writes takes its place at the end: a full disk leaves what was there before.

What a process keeps only while it lives is a folder that it holds, and in it one for each launch. A killed driver
cannot remove its own. Who holds a folder has a lock on it (`flock`), which the kernel gives back when that process is
gone, however it ended and in whatever container: so the next run knows what nobody owns.
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

# How an SQLite file begins: a store must never be taken for an old page or trace.
SQLITE = b"SQLite format 3"

PREFIX = "parabench-run-"

# Where a file may be asked for: what then holds its text alone.
STANDARD_OUTPUT = Path("-")

# Of shared memory that has less room than this nothing is taken: a rank that marks its steps in a file there would be
# killed by SIGBUS when it is full.
SHARED_MEMORY, LEAST_ROOM_BYTES = "/dev/shm", 16 * 2**20

# multiprocessing removes its own folder, which may lie in ours, at -100; what has a lower number comes later.
AFTER_MULTIPROCESSING = -200

# Of a unix socket's path (108 bytes, with a zero at its end), what multiprocessing adds to the folder that it is given:
# /pymp-xxxxxxxx/listener-xxxxxxxx.
SOCKET_PATH_BYTES = 107
SOCKET_NAME_BYTES = 32

# {(process id, where): the folder that it holds there, and the descriptor that has the lock}. A process that was forked
# holds none of its parent's.
_held: dict[tuple[int, str], tuple[Path, int]] = {}


def shipped_folder(name: str) -> Path:
    """Return the folder `suites` or `reports` that belongs to this copy of parabench.

    A wheel has it inside the package. A checkout, installed or not, has it next to the package.
    """
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def is_special(path: Path) -> bool:
    """Whether it is a device or a pipe: written to as it is, for nothing may take its place."""
    return path.exists() and not path.is_file()


def hand_over_file(path: Path, text: str) -> None:
    """Leave a file in a launch's folder for another process, which finds it whole, or not there."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def write_whole(path: Path, content: str | bytes, what: str, remedy: str) -> None:
    """Write `content`, which is a `what`, to `path`, whose folder is made where it is missing.

    Raises UsageError that ends with `remedy` for a database, which is never written over, and for what cannot be
    written; then nothing is left of it.
    """
    raw = content.encode() if isinstance(content, str) else content
    try:
        if is_special(path):
            path.write_bytes(raw)
            return
        whole = Path(os.path.realpath(path))  # a link stays a link
        if _is_database(whole):
            raise UsageError(f"{path} is a database, not a {what}; {remedy}")
        whole.parent.mkdir(parents=True, exist_ok=True)
        with replacing(whole, 0o644) as part:  # 0600 would keep a web server or a colleague out
            part.write_bytes(raw)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error


@contextmanager
def replacing(whole: Path, mode: int = 0o600) -> Iterator[Path]:
    """Yield a file to write to, which replaces `whole` at the end of the block, unless an error ends it."""
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


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def shared_memory_folder() -> str | None:
    """A folder in memory, so that no timed step waits for a disk; None: the usual temporary one."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        return None
    room = os.statvfs(SHARED_MEMORY)  # one without a limit has no blocks
    full = room.f_blocks and room.f_bavail * room.f_frsize < LEAST_ROOM_BYTES
    return None if full else SHARED_MEMORY


def temporary_folder() -> str | None:
    """The usual temporary folder; None where no such folder can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None


def check_own_folder() -> None:
    """Remove what runs left that were killed; then raise UsageError where this one could not leave anything for its
    ranks, or share no lock with them."""
    remove_abandoned()
    memory = shared_memory_folder()
    if temporary_folder() is None:
        if memory is None:
            raise UsageError(
                f"no temporary folder can be written: neither {SHARED_MEMORY} nor any that TMPDIR or the system names; "
                "set TMPDIR to one that can"
            )
        os.environ["TMPDIR"] = memory  # torch asks for one as it is imported
    umask = os.umask(0o077)
    os.umask(umask)
    if not os.access(own_folder(), os.W_OK | os.X_OK):
        raise UsageError(
            f"umask {umask:04o} takes from this user the right to what it writes; set another, such as umask 022"
        )
    from multiprocessing import get_context

    try:
        get_context("fork").Lock()  # of others a process of its own keeps account
    except OSError as error:
        raise UsageError(
            f"{SHARED_MEMORY} cannot be used: {error.strerror}; the locks that processes share lie there: let it be "
            "written, and have room (docker run --shm-size 1g)"
        ) from error


def own_folder(where: str | None = None) -> Path:
    """This process' folder, made when it is first asked for and removed when the process ends; in memory, or `where` it
    is said. Its name holds the process' id, for people who look."""
    where = where or shared_memory_folder() or tempfile.gettempdir()
    key = os.getpid(), where
    if key not in _held:
        _held[key] = _hold(where)
        from multiprocessing.util import Finalize  # a fiftieth of a second, which most commands need not spend

        Finalize(None, _release, args=key, exitpriority=AFTER_MULTIPROCESSING)
    return _held[key][0]


@contextmanager
def launch_folder(where: str | None = None) -> Iterator[Path]:
    """A fresh folder in this process' own, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="launch-", dir=own_folder(where), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def sockets_in_own_folder() -> Iterator[None]:
    """What multiprocessing listens at, if it begins to within the block, lies in this process' own folder; where that
    one's path is too long for a socket, in the usual temporary one."""
    folder, usual = str(own_folder()), tempfile.tempdir
    if len(os.fsencode(folder)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES:
        tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = usual


def remove_abandoned() -> None:
    """Remove the folders that processes of this user have left, which hold no lock on them any more."""
    for where in dict.fromkeys([SHARED_MEMORY, shared_memory_folder(), temporary_folder()]):
        for folder in Path(where).glob(f"{PREFIX}*") if where else ():
            with contextlib.suppress(OSError):  # it is held, or has just gone
                handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
                try:
                    if os.fstat(handle).st_uid == os.geteuid():
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(handle)


def _hold(where: str) -> tuple[Path, int]:
    """A new folder and the descriptor that holds it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=where))
        # Before it is locked another process may take it for abandoned, and remove it.
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        # A file system that knows no locks has nothing removed by others either: they cannot ask.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(folder), os.fstat(handle)):
                return folder, handle
        os.close(handle)


def _release(pid: int, where: str) -> None:
    folder, handle = _held.pop((pid, where), (None, -1))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
