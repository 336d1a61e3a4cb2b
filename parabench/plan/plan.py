"""Make plans: expand a suite into checked cases, skip cases that the machine cannot run, and order the launches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from parabench.collectives import levels_of
from parabench.collectives.nccl import is_nccls
from parabench.data import SYNTHETIC
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.models import OF_THE_MODEL
from parabench.plan.case import DEFAULTS, DEVICES, Case
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.fields import list_text
from parabench.plan.protocol import Protocol
from parabench.plan.resolve import device_of, fit_to_cluster, is_count, resolve, resolve_device, unchosen
from parabench.plan.suite import Suite, Sweep, with_global_batch
from parabench.plan.validate import (
    check,
    check_fit,
    check_names,
    entry_of_model,
    exceeds_machine,
    missing_requirement,
    unpinned,
)
from parabench.records import Record, read
from parabench.store.record import AnyCase
from parabench.strategies import OPTIONAL, STRATEGIES, entry_of
from parabench.workloads import WORKLOADS

AnyProtocol: TypeAlias = Protocol | CollectiveProtocol
C = TypeVar("C", bound=AnyCase)
P = TypeVar("P", bound=AnyProtocol)


class Skipped(Record, Generic[C], frozen=True):
    """A case that this machine cannot run, and the reason. `tried` is true if a failed launch has shown it."""

    case: C
    reason: str
    tried: bool = False


class PlannedLaunch(NamedTuple, Generic[C]):
    """A planned launch of `case`, at `position` in a repetition."""

    repetition: int
    position: int
    case: C


class Plan(Record, Generic[C, P], frozen=True, kw_only=True):
    """The launches of a session, decided before the first one.

    `extra` has the case ids of each repetition that racing has added. `kind` is a key of WORKLOADS. By default, it is
    the kind of the protocol.
    """

    cases: tuple[C, ...]
    skipped: tuple[Skipped[C], ...]
    protocol: P
    seed: int
    extra: tuple[tuple[str, ...], ...] = ()
    kind: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kind:
            structs.force_setattr(self, "kind", self.protocol.kind)

    @property
    def repetitions(self) -> int:
        """Return the number of repetitions, including the added ones."""
        return self.protocol.repetitions + len(self.extra)

    def launches(self, done: Collection[tuple[str, int]] = ()) -> list[PlannedLaunch[C]]:
        """Return the launches of all repetitions, without the `done` ones, which are pairs (case id, repetition).

        Each case is launched once per repetition, in a seeded random order, so that drift affects all cases alike.
        """
        shuffle = random.Random(self.seed)
        launches = []
        for repetition in range(self.protocol.repetitions):
            cases = list(self.cases)
            shuffle.shuffle(cases)
            launches += [PlannedLaunch(repetition, position, case) for position, case in enumerate(cases)]
        known = {case.id: case for case in self.cases}
        for repetition, chosen in enumerate(self.extra, self.protocol.repetitions):
            some = [known[each] for each in chosen if each in known]
            # This order does not depend on earlier repetitions, because each may come from another command.
            random.Random(f"{self.seed}, repetition {repetition}").shuffle(some)
            launches += [PlannedLaunch(repetition, position, case) for position, case in enumerate(some)]
        return [each for each in launches if (each.case.id, each.repetition) not in done]

    def without(self, case: C, reason: str) -> Plan[C, P]:
        """Return the plan without a case, after a launch has shown that this machine cannot run it."""
        rest = tuple(each for each in self.cases if each != case)
        return self.replace(cases=rest, skipped=(*self.skipped, Skipped(case, reason, tried=True)))

    def has_same_request(self, other: Plan[Any, Any]) -> bool:
        """Return whether both plans come from the same request, without regard to changes during the session."""

        def asked(plan: Plan[Any, Any]) -> tuple[Any, ...]:
            cases = {*plan.cases, *(each.case for each in plan.skipped if each.tried)}
            return plan.kind, plan.protocol, plan.seed, cases, [each for each in plan.skipped if not each.tried]

        return asked(self) == asked(other)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "repetitions": self.protocol.repetitions}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan[Any, Any]:
        """Return the plan from the result of `to_dict`. Raises UsageError if a newer version has written it."""
        kind = values.get("kind", "training")
        entry = WORKLOADS.get(kind)
        if entry is None or not entry.planned:
            raise UsageError(f"a session that measures {kind!r} is not known to this parabench; upgrade it")
        fields = {name: value for name, value in values.items() if name != "repetitions"}
        own: type[Plan[Any, Any]] = Plan[entry.case_type, entry.protocol_type]  # type: ignore[name-defined]
        return read(own, fields, "plan")


TrainingPlan = Plan[Case, Protocol]


class NothingToRun(UsageError):
    """Raised if this machine can run none of a suite's cases; `skipped` holds them with their reasons."""

    def __init__(self, message: str, skipped: Sequence[Skipped[Case]]) -> None:
        super().__init__(message)
        self.skipped = tuple(skipped)


# The fields of a case that must divide its world size.
DIVISORS = ("nodes", "tp_size", "ranks_per_node")


def make_plan(
    suite: Suite,
    overrides: Mapping[str, tuple[Any, ...]],
    protocol: Protocol,
    machine: Machine,
    seed: int,
    listed: bool | None = None,
) -> TrainingPlan:
    """Expand a suite into cases, check them, and skip cases that this machine cannot run.

    Args:
        overrides: {axis: values} that the user gave. They replace the suite's values.
        listed: the sizes come from the suite, so a size that does not fit the model is skipped. None derives this from
            `overrides`.

    Raises UsageError for a case that is wrong on any machine, or that `overrides` name. Raises NothingToRun if every
    case is skipped.
    """
    check_axes(suite, overrides)
    found: dict[Case, tuple[bool, str | None]] = {}
    sweeps = fit_to_cluster(suite, overrides, machine).override(overrides).sweeps
    for case, automatic, odd in _candidates(sweeps, machine, overrides):
        if odd is None or case not in found:
            found[case] = automatic, odd
    cases: list[Case] = []
    skipped: list[Skipped[Case]] = []
    for case, (automatic, odd) in found.items():
        check_names(case)
        reason = odd or _why_not(case, automatic, overrides, machine, listed)
        if reason is None:
            cases.append(case)
        else:
            skipped.append(Skipped(case, reason))
    if not found:
        raise UsageError(
            f"suite {suite.name}: nothing to run; an axis without values makes no configurations; give it some"
        )
    if not cases:
        raise NothingToRun(f"suite {suite.name}: nothing to run; {skipped[0].reason}", skipped)
    return Plan(cases=tuple(cases), skipped=tuple(skipped), protocol=protocol, seed=seed)


def one_case(axes: Mapping[str, Any], machine: Machine) -> Case:
    """Return the resolved case with these axes, {axis: value}. Raises UsageError."""
    chosen = {name: value for name, value in axes.items() if name != "world_size"}
    case = _case(chosen, axes.get("world_size", DEFAULTS["world_size"]), machine)
    check_names(case)
    return case


def why_not(axes: Mapping[str, Any], machine: Machine) -> str | None:
    """Return why this machine cannot run the case with these axes, {axis: value}; None if it can."""
    try:
        return _why_not(one_case(axes, machine), True, {}, machine, listed=True)
    except UsageError as error:
        return str(error)


def _why_not(
    case: Case, automatic: bool, overrides: Mapping[str, tuple[Any, ...]], machine: Machine, listed: bool | None
) -> str | None:
    """Return why the case is skipped; None if it is not. Raises UsageError if the user requested this case."""
    reason = missing_requirement(case, machine)
    if reason is not None:
        return reason
    reason = exceeds_machine(case, machine)
    if reason is not None:
        if overrides.keys() & {"world_size", "device"}:
            raise UsageError(reason)
        return reason
    # Some errors only skip the case, because the user did not request it: an automatic world size, a size of the suite
    # that does not fit the model, and an algorithm of the suite for another backend.
    if listed is None:
        listed = bool(overrides) and "strategy" not in overrides
    elsewhere = is_nccls(case.algorithm) and case.backend != "nccl" and not overrides.keys() & {"algorithm", "backend"}
    for check_it, skips in ((check_fit, automatic or listed), (check, automatic or elsewhere)):
        try:
            check_it(case)
        except UsageError as error:
            if not skips:
                raise
            return str(error)
    return unpinned(case, machine.nccl)


def check_axes(suite: Suite, overrides: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise UsageError for an axis that none of its strategies has.

    A sweep drops an axis for strategies that lack it, but at least one strategy must have it.
    """
    # Pairs of axes to check and strategies that may have them: one for each sweep, then one for the overrides.
    default = (DEFAULTS["strategy"],)
    checked = (
        [] if "strategy" in overrides else [(each.axes, each.axes.get("strategy", default)) for each in suite.sweeps]
    )
    every = [name for each in suite.override(overrides).sweeps for name in each.axes.get("strategy", default)]
    for axes, of_axes in [*checked, (overrides, every)]:
        strategies = list(dict.fromkeys(map(str, of_axes)))
        for name, values in axes.items():
            given = [value for value in values if name in OPTIONAL and value != DEFAULTS[name]]
            if axes is not overrides and name in overrides:
                continue
            # two_level needs ranks_per_node, whatever the strategy.
            if not given or name == "ranks_per_node" or any(name in entry_of(each).axes for each in strategies):
                continue
            have = ", ".join(known for known, entry in STRATEGIES.items() if name in entry.axes)
            value = list_text(given[0]) if isinstance(given[0], (list, tuple)) else given[0]
            raise UsageError(
                f"{name}={value} makes no sense here: {', '.join(strategies)} "
                f"{'have' if len(strategies) > 1 else 'has'} no such option; drop it, or use strategy {have}"
            )


def _candidates(
    sweeps: tuple[Sweep, ...], machine: Machine, overrides: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[Case, bool, str | None]]:
    """Yield (case, whether its world size is automatic, reason to skip it or None) for every case of the sweeps.

    A case is skipped if a field of DIVISORS does not divide its automatic world size.
    """
    # On nodes of a given size, the suite's world sizes are replaced, so they are automatic.
    replaced = machine.ranks_per_node is not None and "world_size" not in overrides
    for each in sweeps:
        for values in itertools.product(*each.axes.values()):
            chosen = dict(zip(each.axes, values, strict=True))
            size = chosen.pop("world_size", DEFAULTS["world_size"])
            automatic = size == "auto" or replaced
            on_cuda = device_of(chosen, machine) == accelerator.TYPE
            every = machine.world_sizes(accelerator.TYPE if on_cuda else "cpu")
            for world_size in every if size == "auto" else [size]:
                try:
                    yield _case(chosen, world_size, machine), automatic, None
                except UsageError as error:
                    if not automatic:
                        raise
                    rest = {name: value for name, value in chosen.items() if name not in DIVISORS}
                    yield _case(rest, world_size, machine), automatic, str(error)


def _case(chosen: Mapping[str, Any], world_size: int, machine: Machine) -> Case:
    """Return the resolved case of the `chosen` axes. Unless chosen, data and sequence length suit its model.

    An axis that its strategy lacks is dropped before its value is checked.
    """
    entry = entry_of(str(chosen.get("strategy", DEFAULTS["strategy"])))
    fields = {name: value for name, value in chosen.items() if name not in OPTIONAL or name in entry.axes}
    if entry.one_rank_only:
        world_size, fields["nodes"] = 1, 1
    elif "nodes" not in fields and is_count(world_size):
        fields["nodes"] = machine.nodes_for(world_size)
    fields = with_global_batch(fields, world_size)
    device = device_of(fields, machine)
    if device in DEVICES:  # `Case` rejects any other
        fields = unchosen(device, machine, chosen) | fields
    fields.setdefault("verification", OF_THE_MODEL)
    case = Case(**fields, world_size=world_size)
    if not {"data", "seq_len"} <= chosen.keys():
        # A custom model may depend on the case, whose device must exist.
        model = entry_of_model(case.replace(**resolve_device(case.device, case.backend, machine)))
        reads = model.reads_bytes or (model.vocabulary and case.vocabulary)
        data = SYNTHETIC if not reads else case.data if model.synthetic else DEFAULTS["data"]
        suited = {"data": data, "seq_len": min(case.seq_len, model.context or case.seq_len)}
        case = case.replace(**{name: value for name, value in suited.items() if name not in chosen})
    if levels_of(case.algorithm) is not None and chosen.get("ranks_per_node") is not None:
        case = case.replace(ranks_per_node=chosen["ranks_per_node"])
    return resolve(case, machine)
