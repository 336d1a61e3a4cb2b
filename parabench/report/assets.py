"""The look of a page: the templates, style and scripts of `reports/`, a copy of them for who wants another, and what a
reader put in their place."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from parabench.analysis.ranking import words
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.files import shipped_folder
from parabench.report.bundle import bundle
from parabench.report.spec import FORMATS

STYLES = ("page", "answer", "live", "table", "detail", "compare")


class Look:
    """Reads the files of a page, from `folder` those that it holds and ours for the others.

    Raises UsageError for a folder that is none, or holds none of them.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None:
            check_folder(folder)
        self._folder = folder
        self._sources: set[str] = set()

    def asset(self, name: str) -> str:
        """The text of a file by its name below `reports/`."""
        own = None if self._folder is None else self._folder / name
        try:
            if own is not None and own.is_file():
                return own.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{own} cannot be read: {error}; make it a file of UTF-8 text") from error
        return (shipped_folder("reports") / name).read_text(encoding="utf-8")

    def style(self) -> str:
        """The page's style sheets, one after the other."""
        return "\n".join(self.asset(f"style/{name}.css") for name in STYLES).replace("</", "<\\/")

    def plotly(self) -> str:
        """plotly.js in its basic bundle: lines, marks and bars. All of it would be four times as much to send, and take
        a browser a second to begin with."""
        return self.asset("vendor/plotly-basic.min.js")

    def script(self) -> str:
        """The page's own script. Raises UsageError where a module of the reader's own cannot be joined."""
        return bundle(lambda path: self.asset(f"script/{path}"))

    def render(self, template: str, **content: Any) -> str:
        """`template` filled with `content`. Raises UsageError where one of the reader's own is wrong."""
        try:
            page = self._environment().get_template(template).render(**content)
        except UsageError:
            raise
        except Exception as error:
            # Whatever a template does wrong: it is the reader's, or what one of theirs gave to one of ours.
            if self._folder is None:
                raise
            why = f"there is no {error}" if isinstance(error, jinja2.TemplateNotFound) else error
            raise UsageError(
                f"a template of {self._folder} cannot be used: {self._place(error, template)}: {why}; fix it"
            ) from error
        if not page.strip():
            raise UsageError(f"a template of {self._folder} gives an empty page: {template}; fix it")
        # Halves of characters, which a store's JSON can hold, can be written to no file.
        return page.encode("utf-8", "replace").decode("utf-8")

    def _place(self, error: Exception, template: str) -> str:
        """In which template an error is, and in which line, as far as Jinja knows."""
        if isinstance(error, jinja2.TemplateSyntaxError):
            return f"{error.filename}, line {error.lineno}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in self._sources]
        return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else template

    def _source(self, name: str) -> tuple[str, str, None] | None:
        """A template as Jinja takes it, with where it is from; None where there is none of that name."""
        own = None if self._folder is None else self._folder / name
        where = str(own) if own is not None and own.is_file() else f"reports/{name}"
        try:
            text = self.asset(name)
        except OSError:
            return None
        self._sources.add(where)
        return text, where, None

    def _environment(self) -> jinja2.Environment:
        environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(self._source),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            optimized=False,  # every template is filled once: folding its constants takes longer than it saves
        )
        environment.filters.update(FILTERS)
        return environment


FILTERS: dict[str, Callable[..., Any]] = {
    **FORMATS,
    "beside_ms": format.margin_ms,
    "beside_rate": format.margin_rate,
    "whole": lambda value: str(int(value)) if format.known(value) else "",
    "text": lambda value: value if isinstance(value, str) else "",
    "when": format.when,
    "line": format.one_line,
    "sentences": words.sentences,
    "nominal": words.nominal,
    "notes": words.notes,
}


@cache
def names() -> tuple[str, ...]:
    """Templates, scripts and style sheets, as paths below `reports/`."""
    root = shipped_folder("reports")
    return (*_files(root, ".html"), *_files(root, ".js", "script"), *_files(root, ".css", "style"))


def _files(folder: Path, ending: str, below: str = "") -> Iterator[str]:
    """The files of `folder` with that ending, also in folders of `below`, by name."""
    for each in sorted((folder / below).iterdir()):
        path = f"{below}/{each.name}".lstrip("/")
        if below and each.is_dir():
            yield from _files(folder, ending, path)
        elif each.name.endswith(ending):
            yield path


def check_folder(folder: Path) -> None:
    """Raise UsageError where `folder` is none, or holds nothing that a page would take from it."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give --template a folder with templates like those of reports/")
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
    root = shipped_folder("reports")
    try:
        for name in names():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("x", encoding="utf-8") as file:
                file.write((root / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}; "
            "give another folder to --copy-templates"
        ) from error
