"""Make the command that measures one case of a session again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from parabench.analysis.environment.nodes import cluster_options
from parabench.analysis.session import Session
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.fields import option_fields, typed
from parabench.plan.protocol import Protocol
from parabench.plan.suite import BATCH_PER_RANK
from parabench.records import declared
from parabench.strategies import OPTIONAL, entry_of

# These are set for each case whose strategy has them, even if all cases agree: a suite may tie them to a strategy, and
# `--set` frees what it ties.
ALWAYS = ("strategy", "algorithm", "bucket_mib", "world_size", "global_batch")
# Options of `parabench run` and `parabench ab` that take no value.
_FLAGS = {each.field.option for each in option_fields(Protocol).values() if each.type is bool}
_FLAGS |= {"--until-decided", "--resume", "--links", "--dry-run"}


def rerun_of(session: Session) -> Callable[[Case], str]:
    """Return a function that returns the `parabench run` command of a configuration.

    The command has the suite and the options of the session. It is empty if the strategy is not in the plan.
    """
    suite, named = _of_command(session.argv, session.suite)
    planned: list[dict[str, Any]] = list(session.plan.get("cases") or [])
    # Skipped cases show which axes the suite's other sweeps set.
    every = [*planned, *(skipped["case"] for skipped in session.plan.get("skipped") or [])]
    differ = {name for name, unset in DEFAULTS.items() if len({str(case.get(name, unset)) for case in every}) > 1}
    names = [name for name in DEFAULTS if name in ALWAYS or name in named or name in differ]
    strategies = {str(case.get("strategy", DEFAULTS["strategy"])) for case in planned}
    # A single case is not interleaved.
    protocol = (session.plan.get("protocol") or {}) | {"rounds": None}
    options = [*typed(Protocol, protocol), *cluster_options(session.environment)]

    def command(case: Case) -> str:
        if case.strategy not in strategies:
            return ""
        cells = case.cells()
        sets = [word for name in names if _has(case, name) for word in ("--set", f"{name}={_text(name, cells[name])}")]
        return shlex.join(["parabench", "run", suite, *sets, *options])

    return command


def _has(case: Case, axis: str) -> bool:
    """Return whether an axis applies to a case. `ranks_per_node` applies only if it is set."""
    if axis == "ranks_per_node":
        return case.ranks_per_node is not None
    return axis not in OPTIONAL or axis in entry_of(case.strategy).axes


def _text(name: str, value: Any) -> str:
    """Return a value as `--set` reads it; a comma in a path is written `\\\\,`."""
    field = declared(Case)[name].field
    if value is None or value == "":
        return field.unset
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
    return text.replace(",", r"\,") if field.path else text


def _of_command(argv: Sequence[str], suite: str) -> tuple[str, set[str]]:
    """Return the suite in a command line, which may be a path, and the names of the axes that are set."""
    found, named = suite, set()
    words = iter(argv[1:])
    for word in words:
        option, equals, value = word.partition("=")
        if option.startswith("-"):
            if not equals:
                value = "" if option in _FLAGS else next(words, "")
            if option in ("--set", "--parabench-set"):
                axis = value.partition("=")[0]
                named.add("global_batch" if axis == BATCH_PER_RANK else axis)
            elif option in ("--data", "--model"):
                named.add(option[2:])
        elif PurePath(word).stem == suite:
            found = word
    return found, named
