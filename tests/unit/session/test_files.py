"""Temporary folders of a process, which ended processes leave; files that are written completely or not at all."""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from parabench import files
from parabench.errors import UsageError

HOLDER = """
import sys
from parabench.files import launch_folder, own_folder
with launch_folder() as folder:
    (folder / "marks").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Return separate folders for memory and disk. The process keeps its real folder, where its fork server listens."""
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
    """Remove the folders of this process, as at its end."""
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


def test_remove_abandoned_keeps_what_others_hold(places: tuple[Path, Path]) -> None:
    """A lock shows that a process exists, not its number: here both processes have the number of a missing one."""
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


def test_own_folder_keeps_foreign_files(places: tuple[Path, Path], tmp_path: Path) -> None:
    memory, _ = places
    (tmp_path / "precious" / "data").mkdir(parents=True)
    (memory / "parabench-run-1-link").symlink_to(tmp_path / "precious")
    (memory / "parabench-run-2-file").touch()
    (memory / "somebody-1-else").mkdir()
    files.remove_abandoned()
    assert names(memory) == ["parabench-run-1-link", "parabench-run-2-file", "somebody-1-else"]
    assert names(tmp_path / "precious") == ["data"]


# -- whole files -----------------------------------------------------------------------------------------------------


def test_write_whole_keeps_the_old_file_when_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("older")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(UsageError, match=r"page.html cannot be written: File too large; give another$"):
            files.write_whole(path, "x" * 100_000, "page", "give another")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("page.html", "older")]
