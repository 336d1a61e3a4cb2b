"""What a side of `parabench ab` is: environment variables, a virtual environment, a folder; told in words."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parabench.errors import UsageError, near
from parabench.machine.machine import ENVIRONMENT_VARIABLES

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side. `venv` is a virtual environment, `folder` a checkout; None is what this process has."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    venv: Path | None = None
    folder: Path | None = None

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python") if self.venv else sys.executable

    def environment(self) -> dict[str, str]:
        """The whole environment of this side's processes. A virtual environment is activated as its script does it."""
        environment = dict(os.environ)
        if self.venv is not None:
            environment |= {"VIRTUAL_ENV": str(self.venv), "PATH": _first(self.venv / "bin", environment.get("PATH"))}
            environment.pop("PYTHONHOME", None)
        environment |= self.variables
        if self.folder is not None:
            environment["PYTHONPATH"] = _first(self.folder, environment.get("PYTHONPATH"))
        return environment

    def shown(self) -> str:
        """In words, for whoever typed them; a value that may be a secret is left out."""
        return shlex.join(self._words(paths=True))

    def recorded(self) -> str:
        """As the store may have it: no path, and no value of a variable that is not on the list of those recorded."""
        return shlex.join(self._words(paths=False))

    def _words(self, paths: bool) -> Iterator[str]:
        for name, value in self.variables.items():
            yield f"{name}={value if name in ENVIRONMENT_VARIABLES else '...'}"
        yield from (str(each) if paths else each.name for each in (self.venv, self.folder) if each is not None)


def read_variant(name: str, text: str, option: str | None = None) -> Variant:
    """The side `name`, "a" or "b", that `text` describes, given with `option`, by default --a or --b. Raises UsageError
    for a word that is none of the three."""
    option = f"{option or f'--{name}'} {shlex.quote(text)}"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}; quote it as for a shell") from error
    variables: dict[str, str] = {}
    venvs: list[Path] = []
    folders: list[Path] = []
    for word in words:
        variable = _VARIABLE.fullmatch(word)
        path = Path(os.path.abspath(os.path.expanduser(word)))
        if variable:
            variables[variable[1]] = variable[2]
        elif os.access(path / "bin" / "python", os.X_OK):
            venvs.append(path)
        elif path.is_dir():
            folders.append(path)
        else:
            raise UsageError(
                f"{option}: {word!r} is neither NAME=VALUE nor a folder; {near(Path(word))}give one of them, or '' for "
                "this checkout and environment"
            )
    for what, found in (("virtual environments", venvs), ("folders", folders)):
        if len(found) > 1:
            raise UsageError(f"{option}: {found[0].name} and {found[1].name} are both {what}; give one")
    return Variant(
        name=name,
        variables=variables,
        venv=venvs[0] if venvs else None,
        folder=folders[0] if folders else None,
    )


def _first(folder: Path, path: str | None) -> str:
    return os.pathsep.join([str(folder), *filter(None, [path])])
