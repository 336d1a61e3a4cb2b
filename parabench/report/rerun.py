"""The command that measures one case of a session again, and nothing beside it.

A page holds once what all commands share; `reports/script/detail/case.js` says what differs from case to case, as
`command` does here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
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

# Said of every case whose strategy has them, although cases may agree in them: a suite may tie them to a strategy, and
# `--set` frees what it ties. A batch may be given for each rank.
ALWAYS = ("strategy", "algorithm", "bucket_mib", "world_size", "global_batch")
# How a value that is not set is said, and which axes are paths, where a comma is written `\\,`.
UNSET = {name: each.field.unset for name, each in declared(Case).items() if each.field.unset}
PATHS = tuple(name for name, each in declared(Case).items() if each.field.path)
# Options of `parabench run` and `parabench ab` that take no value.
_FLAGS = {each.field.option for each in option_fields(Protocol).values() if each.type is bool}
_FLAGS |= {"--until-decided", "--resume", "--links", "--dry-run"}


@dataclass(frozen=True)
class Rerun:
    """What a page needs to say the command of any of its cases: what it begins and ends with, by strategy the axes that
    are set between, and how each of them is said when its value is None."""

    head: str
    tail: str
    axes: dict[str, tuple[str, ...]]
    unset: dict[str, str]
    paths: tuple[str, ...] = PATHS

    def command(self, case: Case) -> str:
        values = case.cells()
        # Without a value it means nothing, and may be given where the algorithm has levels alone.
        names = [name for name in self.axes[case.strategy] if not (name == "ranks_per_node" and values[name] is None)]
        sets = [f"--set {shlex.quote(f'{name}={self._said(name, values[name])}')}" for name in names]
        return " ".join(filter(None, (self.head, *sets, self.tail)))

    def _said(self, name: str, value: Any) -> str:
        if value is None or value == "":
            return self.unset[name]
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        said = str(value).lower() if isinstance(value, bool) else str(value)
        return said.replace(",", r"\,") if name in self.paths else said

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def rerun_of(session: Session) -> Rerun:
    """How the cases of a session of trainings are measured again: by its suite, with what its command line set."""
    suite, named = _of_command(session.argv, session.suite)
    planned: list[dict[str, Any]] = list(session.plan.get("cases") or [])
    # What was skipped counts too: it tells what the suite's other sweeps set.
    every = [*planned, *(skipped["case"] for skipped in session.plan.get("skipped") or [])]
    names = [name for name in DEFAULTS if name in ALWAYS or name in named or _differ(name, every)]
    strategies = dict.fromkeys(str(case.get("strategy", DEFAULTS["strategy"])) for case in planned)
    # One case has no other to take turns with.
    protocol = (session.plan.get("protocol") or {}) | {"rounds": None}
    return Rerun(
        head=shlex.join(["parabench", "run", suite]),
        tail=shlex.join([*typed(Protocol, protocol), *cluster_options(session.environment)]),
        axes={strategy: tuple(name for name in names if _has(strategy, name)) for strategy in strategies},
        unset={name: said for name, said in UNSET.items() if name in names},
    )


def _has(strategy: str, axis: str) -> bool:
    return axis not in OPTIONAL or axis in entry_of(strategy).axes or axis == "ranks_per_node"


def _differ(name: str, cases: Iterable[dict[str, Any]]) -> bool:
    values = (case.get(name, DEFAULTS[name]) for case in cases)
    return len({tuple(value) if isinstance(value, list) else value for value in values}) > 1


def _of_command(argv: Sequence[str], suite: str) -> tuple[str, set[str]]:
    """The suite as the command line named it, which may be a path, and the axes that it set."""
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
