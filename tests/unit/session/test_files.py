"""What a process keeps while it lives: its own stays, what nobody holds any more goes, and nothing else does."""

from __future__ import annotations

import errno
import multiprocessing.synchronize
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parabench import files
from parabench.errors import UsageError
from parabench.files import shared_memory_folder

HOLDER = """
import sys
from parabench.files import launch_folder, own_folder
with launch_folder() as folder:
    (folder / "marks").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Memory and disk of one's own. No test undoes that: at the end this process' own folder would be removed, at which
    its fork server listens."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "shared_memory_folder", lambda: str(memory))
        patch.setattr(tempfile, "tempdir", str(disk))
        patch.setattr(files, "_held", {})
        yield memory, disk
        release()


def release() -> None:
    """Remove what this process holds, as at its end."""
    for pid, where in list(files._held):
        files._release(pid, where)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_process_holds_one_folder_in_each_place_until_it_ends(places: tuple[Path, Path]) -> None:
    memory, disk = places
    with files.launch_folder() as one, files.launch_folder() as other, files.launch_folder(str(disk)) as third:
        assert one.parent == other.parent == files.own_folder()
        assert one.parent.parent == memory
        assert third.parent.parent == disk
        files.remove_abandoned()
        assert one.is_dir()
        assert third.is_dir()
    assert names(files.own_folder()) == []
    release()
    assert names(memory) == names(disk) == []


def test_where_there_is_no_memory_the_disk_is_taken(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "shared_memory_folder", lambda: None)
    assert files.own_folder().parent == places[1]
    files.remove_abandoned()
    assert files.own_folder().is_dir()


def test_what_a_killed_process_left_goes_and_what_others_hold_stays(places: tuple[Path, Path]) -> None:
    """The lock says who lives, not the number: here both processes live in the name of one that does not exist."""
    memory, disk = places
    code = f"import os, tempfile; os.getpid = lambda: {2**22 + 1}\nfrom parabench import files\n"
    code += f"files.shared_memory_folder = lambda: {str(memory)!r}\n{HOLDER}"
    holders = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = []
    for holder in holders:
        assert holder.stdout is not None
        folders.append(Path(holder.stdout.readline().strip()))
    (disk / "parabench-run-7-abc" / "launch-x").mkdir(parents=True)
    files.remove_abandoned()
    assert all((folder / "marks").exists() for folder in folders)
    assert names(disk) == []
    holders[0].kill()
    holders[0].communicate()
    assert folders[0].is_dir()
    files.remove_abandoned()
    assert not folders[0].parent.exists()
    assert (folders[1] / "marks").exists()
    holders[1].communicate()
    assert not folders[1].exists()


def test_what_is_not_ours_stays(places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, _ = places
    (tmp_path / "precious" / "data").mkdir(parents=True)
    (memory / "parabench-run-1-link").symlink_to(tmp_path / "precious")
    (memory / "parabench-run-2-file").touch()
    (memory / "somebody-1-else").mkdir()
    files.remove_abandoned()
    assert names(memory) == ["parabench-run-1-link", "parabench-run-2-file", "somebody-1-else"]
    assert names(tmp_path / "precious") == ["data"]
    # Of another user, which only root can make for real.
    (memory / "parabench-run-3-abc").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        files.remove_abandoned()
    assert "parabench-run-3-abc" in names(memory)
    files.remove_abandoned()
    assert "parabench-run-3-abc" not in names(memory)


def test_what_multiprocessing_listens_at_lies_in_the_folder_if_its_path_is_short_enough(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tempfile.gettempdir()
    assert len("/pymp-12345678/listener-12345678") == files.SOCKET_NAME_BYTES
    for length, lies in ((75, True), (76, False)):
        folder = Path("/" + "x" * (length - 1))
        monkeypatch.setattr(files, "own_folder", lambda folder=folder: folder)
        with files.sockets_in_own_folder():
            assert tempfile.gettempdir() == (str(folder) if lies else usual)
        assert tempfile.gettempdir() == usual


def room(blocks: int, free_bytes: int) -> Any:
    return lambda path: SimpleNamespace(f_blocks=blocks, f_bavail=free_bytes // 4096, f_frsize=4096)


@pytest.mark.parametrize(
    ("blocks", "free_bytes", "taken"), [(16384, 64 * 2**20, True), (16384, 2**20, False), (0, 0, True)]
)
def test_memory_that_is_nearly_full_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, blocks: int, free_bytes: int, taken: bool
) -> None:
    """A rank that marks its steps in a file there would end by SIGBUS; a file system without a limit has no blocks."""
    monkeypatch.setattr(os, "statvfs", room(blocks, free_bytes))
    assert shared_memory_folder() == ("/dev/shm" if taken else None)


def refused(call: Callable[[], None]) -> str:
    with pytest.raises(UsageError) as error:
        call()
    return str(error.value)


def test_where_nothing_can_be_written_it_is_said_before_a_run(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setenv("TMPDIR", "/not/there")
    files.check_own_folder()
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    # What torch imports asks for a folder of that sort.
    files.check_own_folder()
    assert os.environ["TMPDIR"] == str(places[0])
    monkeypatch.setattr(files, "shared_memory_folder", lambda: None)
    assert "set TMPDIR to one that can" in refused(files.check_own_folder)


def test_memory_without_room_for_a_lock_is_said_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(multiprocessing.synchronize.Lock, "__init__", full)
    assert refused(files.check_own_folder) == (
        "/dev/shm cannot be used: No space left on device; the locks that processes share lie there: let it be "
        "written, and have room (docker run --shm-size 1g)"
    )
