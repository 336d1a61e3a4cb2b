"""A variant of `parabench ab`: environment variables, a virtual environment, and a folder, written as words."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parabench.errors import UsageError
from parabench.machine.machine import ENVIRONMENT_VARIABLES

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# The variants in the results database, as users read them.
ROLE = {"a": "baseline", "b": "candidate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant. `venv` is a virtual environment, and `folder` a checkout; `None` means those of this process."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    venv: Path | None = None
    folder: Path | None = None

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python") if self.venv else sys.executable

    def environment(self) -> dict[str, str]:
        """Return all variables of its processes. A virtual environment is activated as its script does."""
        environment = dict(os.environ)
        if self.venv is not None:
            environment |= {"VIRTUAL_ENV": str(self.venv), "PATH": _first(self.venv / "bin", environment.get("PATH"))}
            environment.pop("PYTHONHOME", None)
        environment |= self.variables
        if self.folder is not None:
            environment["PYTHONPATH"] = _first(self.folder, environment.get("PYTHONPATH"))
        return environment

    def shown(self) -> str:
        """Return its words for the user who typed them, without values that may be secret."""
        return shlex.join(self._words(paths=True))

    def recorded(self) -> str:
        """Return its words for the results database: without paths, and values of variables that are not recorded."""
        return shlex.join(self._words(paths=False))

    def _words(self, paths: bool) -> Iterator[str]:
        for name, value in self.variables.items():
            yield f"{name}={value if name in ENVIRONMENT_VARIABLES else '...'}"
        yield from (str(each) if paths else each.name for each in (self.venv, self.folder) if each is not None)


def read_variant(name: str, text: str) -> Variant:
    """Return the variant, "a" or "b", that `text` describes. Raises UsageError."""
    option = f"--{ROLE[name]} {shlex.quote(text)}"
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
                f"{option}: {word!r} is neither NAME=VALUE nor a folder; '' is this checkout and environment"
            )
    for what, found in (("virtual environments", venvs), ("folders", folders)):
        if len(found) > 1:
            raise UsageError(f"{option}: {found[0].name} and {found[1].name} are both {what}; give one")
    return Variant(name=name, variables=variables, venv=next(iter(venvs), None), folder=next(iter(folders), None))


def _first(folder: Path, path: str | None) -> str:
    return os.pathsep.join([str(folder), *filter(None, [path])])
