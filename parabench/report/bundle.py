"""The page's script: the ES modules of `reports/script/` joined to one inline script, which opens from a file.

A browser loads no module from `file://`, and whoever installs parabench has no bundler. So a module imports and exports
by name only, at the beginning of a line; it becomes a function that returns what it exports, after those it imports.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from parabench.errors import UsageError

_IMPORT = re.compile(r'^import \{([^{}]*)\} from "(\.[^"]*)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:const|function|async function|class) ([A-Za-z_$][\w$]*))", re.M)
_OTHER = re.compile(r"^[ \t]*(?:import|export)\b.*|\bimport\(.*", re.M)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def bundle(read: Callable[[str], str], entry: str = "start.js") -> str:
    """The module `entry` and all that it imports as one script, run in a task of its own, because plotly.js before it
    takes one. `read` gives a module's text by its path, and raises FileNotFoundError where there is none.

    Raises UsageError for a module that is missing or does not export what is imported, for modules that import each
    other, and for an import or export of another kind.
    """
    exports: dict[str, set[str]] = {}
    parts: list[str] = []

    def add(path: str, importers: tuple[str, ...]) -> None:
        if path in importers:
            circle = " -> ".join((*importers[importers.index(path) :], path))
            raise UsageError(
                f"modules of the page's script import each other: {circle}; move what both need to a third"
            )
        if path in exports:
            return
        try:
            text = read(path)
        except FileNotFoundError:
            raise UsageError(f"{importers[-1]} imports {path}, which does not exist; correct the path") from None
        for names, source in _IMPORT.findall(text):
            imported = _resolved(path, source)
            add(imported, (*importers, path))
            if missing := sorted(set(_named(path, names)) - exports[imported]):
                raise UsageError(f"{path} imports {missing[0]}, which {imported} does not export; correct the name")
        exports[path] = set(_EXPORT.findall(text))
        body = _EXPORT.sub("", _IMPORT.sub(lambda found: _unpacked(path, found), text))
        if other := _OTHER.search(body):
            raise UsageError(
                f"{path}: {other[0].strip()!r} is of a kind that the page's script cannot have; write "
                '`import { name } from "./module.js";` or `export const name`, at the beginning of a line'
            )
        parts.append(
            f'modules["{path}"] = (() => {{\n{body}\nreturn {{ {", ".join(sorted(exports[path]))} }};\n}})();\n'
        )

    add(entry, ())
    return '"use strict";\nsetTimeout(() => {\nconst modules = {};\n' + "".join(parts) + "});\n"


def _resolved(path: str, source: str) -> str:
    """The path below `reports/script/` of what the module at `path` imports from `source`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), source))


def _named(path: str, names: str) -> list[str]:
    """The names between an import's braces."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    for name in listed:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{path} imports {name!r}; import by name alone")
    return listed


def _unpacked(path: str, found: re.Match[str]) -> str:
    return f'const {{ {", ".join(_named(path, found[1]))} }} = modules["{_resolved(path, found[2])}"];'
