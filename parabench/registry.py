"""Names to code: our own entries, a user's `package.module:name`, or an installed package's entry point.

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
    """Where a strategy, algorithm, model, source of data or exporter lives (`module:name`), and what it is in a few
    words. `package` is what must be installed, by the name that Python imports."""

    target: str
    summary: str
    package: str | None = None

    @property
    def missing(self) -> str | None:
        """The package that is needed and not installed."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return self.package if absent else None


E = TypeVar("E", bound=Entry)


def find(table: Mapping[str, E], kind: str, name: str) -> E | None:
    """The entry called `name`; None for a user's own, which is then named by its target alone.

    Raises UsageError for an unknown name, with the nearest known one.
    """
    if name in table:
        return table[name]
    if ":" in name or _entry_point(kind, name) is not None:
        return None
    raise unknown(kind, name, table, ", or package.module:name")


def working_directory() -> str:
    """Where this process stands. Raises UsageError where that was removed: not even torch can be loaded there."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the working directory was removed; change to one that is there") from error


def import_from_here() -> None:
    """Let package.module:name also stand for a module in the working directory; last in line, so that no file there
    takes the place of a library's. Raises UsageError."""
    sys.path.append(working_directory())


def load(table: Mapping[str, Entry], kind: str, name: str) -> Any:
    """The object that `name` stands for, imported now. Raises UsageError when it cannot be had."""
    entry = find(table, kind, name)
    point = None if entry or ":" in name else _entry_point(kind, name)
    target = entry.target if entry else point.value if point else name
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a UsageError too: what it says is not of the user's options
        # What was meant may be one of the table that has a colon, as nccl:ring and mnist:DIR have.
        colon = [each for each in table if ":" in each] + [f"{each}:{attribute}" for each in table if kind == "data"]
        hint = did_you_mean(name, colon, cutoff=0.8) if isinstance(error, ModuleNotFoundError) else ""
        if isinstance(error, ModuleNotFoundError) and not hint:
            hint = _where_to_look(module_name, attribute, error.name or "")
        why = _one_line(error) + (hint and f"; {hint.rstrip()}")
        raise UsageError(f"{kind} {name!r} cannot be loaded: {why}") from error


def load_factory(table: Mapping[str, Entry], kind: str, name: str, returns: str) -> Callable[..., Any]:
    """A user's own function, which is to return a `returns`. Raises UsageError when it cannot be had or is none."""
    factory = load(table, kind, name)
    if not callable(factory):
        raise UsageError(f"{kind} {name!r} is {type(factory).__name__}; it must be a function that returns a {returns}")
    return factory  # type: ignore[no-any-return]


def call_factory(factory: Callable[..., Any], case: object) -> Any:
    """What a user's factory gives; one that takes an argument is given the case."""
    return factory(case) if takes_argument(factory) else factory()


@contextlib.contextmanager
def users_code(failing: str, remedy: str = "") -> Iterator[None]:
    """Raise UsageError for whatever somebody else's code raises inside: what fails then, why, and the remedy."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{failing}: {_one_line(error)}{remedy and '; '}{remedy}") from error


def takes_argument(function: Any, more_than: int = 0) -> bool:
    """Return whether a user's function requires more than this number of arguments. Defaults do not count."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function in C that does not tell
        return False
    asked = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in asked and each.default is each.empty for each in parameters) > more_than


def _where_to_look(module: str, attribute: str, missing: str) -> str:
    """Return the remedy for an import of `module` that failed because the module `missing` was not found."""
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


@functools.cache  # a look takes milliseconds
def _entry_point(kind: str, name: str) -> EntryPoint | None:
    """`name` in the entry point group `parabench.strategy`, `.algorithm`, `.model`, `.data` or `.exporter`."""
    from importlib import metadata  # and email with it, which only another package's names are worth

    points = metadata.entry_points(group=f"parabench.{kind}", name=name)
    return next(iter(points), None)
