"""A file is written completely or not at all, and special files are not replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from parabench.errors import UsageError
from parabench.files import write_whole


def write(path: Path, text: str = "new") -> None:
    write_whole(path, text, "page", "give another")


def test_a_missing_folder_is_made_and_an_older_file_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "page.html"
    write(path)
    write(path, "newer, für alle")
    assert path.read_text(encoding="utf-8") == "newer, für alle"
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]


def test_write_whole_keeps_the_old_file_when_the_disk_is_full(tmp_path: Path, full_disk) -> None:
    path = tmp_path / "page.html"
    for older in (None, "older"):
        if older:
            path.write_text(older)
        with full_disk(1000), pytest.raises(UsageError, match=r"page.html cannot be written: File too large; give an"):
            write(path, "x" * 100_000)
        assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("page.html", "older")] * bool(older)


@pytest.mark.parametrize(
    ("name", "said"),
    [("db", "is a database, not a page"), (".", "Is a directory"), ("file/x", "cannot be written: ")],
)
def test_write_whole_names_the_remedy(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"SQLite format 3\0")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"{said}.*; give another$"):
        write(tmp_path / name)
    assert (tmp_path / "db").read_bytes() == b"SQLite format 3\0"
