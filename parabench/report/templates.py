"""The files that a page is made of, and a copy of them for who wants another look."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from parabench.errors import UsageError

# The folders below `reports/`, and how what belongs to a page ends there.
_KINDS = (("", ".html"), ("script", ".js"), ("style", ".css"))


@cache
def names() -> tuple[str, ...]:
    """Templates, scripts and style sheets, as paths below `reports/`."""
    root = resources.files("parabench.reports")
    return tuple(
        f"{folder}/{file.name}".lstrip("/")
        for folder, ending in _KINDS
        for file in sorted((root / folder if folder else root).iterdir(), key=lambda file: file.name)
        if file.name.endswith(ending)
    )


def check_folder(folder: Path) -> None:
    """Raise UsageError where `folder` is none, or holds nothing that a page would take from it."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give --template a folder with templates like those of reports/")
    for name in names():
        if (folder / name).is_dir():
            raise UsageError(f"{folder / name} is a directory; make it a file of UTF-8 text, or give it another name")
    if not any((folder / name).is_file() for name in names()):
        raise UsageError(
            f"nothing in {folder} would be used: its files must be called {', '.join(names())}; "
            "`parabench report --copy-templates DIR` writes all of them to change"
        )


def copy_to(folder: Path) -> None:
    """Write all of them to `folder`, which is made where it is missing.

    Raises UsageError, before anything is written, where one of them is there already, and where the folder cannot be
    written.
    """
    there = [name for name in names() if (folder / name).exists()]
    if there:
        raise UsageError(f"{folder / there[0]} exists and is not written over; give another folder to --copy-templates")
    root = resources.files("parabench.reports")
    try:
        for name in names():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("x", encoding="utf-8") as file:
                file.write(root.joinpath(*name.split("/")).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}; "
            "give another folder to --copy-templates"
        ) from error
