"""Find code by its name: in parabench's tables, as a user's `package.module:name`, or as an installed entry point.

Nothing is imported before `load` is called, so names can be listed and checked without torch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from parabench.errors import UsageError, did_you_mean, unknown, worker_error

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row in a table of strategies, algorithms, models, data sources or exporters.

    Attributes:
        target: the code, as `module:name`.
        summary: a few words about it, for users.
        package: the import name of a package that it requires.
    """

    target: str
    summary: str
    package: str | None = None

    @property
    def missing(self) -> str | None:
        """The required package if it is not installed; None otherwise."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return self.package if absent else None


E = TypeVar("E", bound=Entry)


def find(table: Mapping[str, E], kind: str, name: str) -> E | None:
    """Return the entry with a name; None for the name of a user's code or of an installed entry point.

    Raises UsageError for an unknown name, with the most similar known one.
    """
    if name in table:
        return table[name]
    if ":" in name or _entry_point(kind, name) is not None:
        return None
    raise unknown(kind, name, table, ", or package.module:name")


def working_directory() -> str:
    """Return the working directory. Raises UsageError if it was removed: even torch could not be imported then."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the working directory was removed; change to one that is there") from error


def import_from_here() -> None:
    """Let imports find modules in the working directory, too. Raises UsageError if it was removed.

    It is the last folder on the path, so that no file in it replaces a library.
    """
    sys.path.append(working_directory())


def load(table: Mapping[str, Entry], kind: str, name: str) -> Any:
    """Import and return the object that a name of a kind, such as "model", refers to. Raises UsageError if it fails."""
    entry = find(table, kind, name)
    point = None if entry or ":" in name else _entry_point(kind, name)
    target = entry.target if entry else point.value if point else name
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # even a UsageError, whose text is not about the user's options
        hint = _where_to_look(table, kind, name, error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        raise UsageError(f"{kind} {name!r} cannot be loaded: {_one_line(error)}{hint and '; '}{hint}") from error


def load_factory(table: Mapping[str, Entry], kind: str, name: str, returns: str) -> Callable[..., Any]:
    """Import and return a user's function. Raises UsageError, with the type it `returns`, if it is not a function."""
    factory = load(table, kind, name)
    if not callable(factory):
        raise UsageError(f"{kind} {name!r} is {type(factory).__name__}; it must be a function that returns a {returns}")
    return factory  # type: ignore[no-any-return]


def call_factory(factory: Callable[..., Any], case: object) -> Any:
    """Call a user's factory, with the case if it takes an argument."""
    return factory(case) if takes_argument(factory) else factory()


@contextlib.contextmanager
def users_code(failing: str, remedy: str = "") -> Iterator[None]:
    """Convert errors of a user's code in the block to UsageErrors with the texts `failing`, the error, and `remedy`."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{failing}: {_one_line(error)}{remedy and '; '}{remedy}") from error


def takes_argument(function: Any, more_than: int = 0) -> bool:
    """Return whether a function requires more than `more_than` positional arguments, without those with defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function in C without a signature
        return False
    asked = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in asked and each.default is each.empty for each in parameters) > more_than


def _where_to_look(table: Mapping[str, Entry], kind: str, name: str, missing: str) -> str:
    """Return the remedy for an import that failed because the module `missing` was not found."""
    module, _, attribute = name.partition(":")
    # Some names of the tables have a colon, as nccl:ring and mnist:DIR.
    colon = [each for each in table if ":" in each] + [f"{each}:{attribute}" for each in table if kind == "data"]
    if similar := did_you_mean(name, colon, cutoff=0.8):
        return similar.rstrip()
    if module.endswith(".py"):
        return f"write {module.removesuffix('.py')}:{attribute}"
    if module == missing or module.startswith(f"{missing}."):
        return "run parabench in the folder of that module, or add the folder to PYTHONPATH"
    return f"{module} imports {missing}; install it, or add its folder to PYTHONPATH" if missing else ""


def _one_line(error: BaseException) -> str:
    if of_worker := worker_error(str(error)):
        return of_worker
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@functools.cache  # a search takes milliseconds
def _entry_point(kind: str, name: str) -> EntryPoint | None:
    """Return `name` in the entry point group `parabench.strategy`, `.algorithm`, `.model`, `.data` or `.exporter`."""
    from importlib import metadata  # imports email, which only names of other packages need

    points = metadata.entry_points(group=f"parabench.{kind}", name=name)
    return next(iter(points), None)
