"""The plan: a suite's sweeps become checked cases, what this machine can't run is set aside, blocks get an order."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar
from typing import Protocol as Interface

from parabench.case import Case, Protocol
from parabench.collective_case import CollectiveCase, CollectiveProtocol
from parabench.collectives import ALGORITHMS, canonical, is_nccls, levels_of, table_name
from parabench.data import source
from parabench.errors import UsageError
from parabench.machine import RANKS_PER_CORE, Machine
from parabench.models import MODELS
from parabench.record import AnyCase
from parabench.registry import Entry, find, load
from parabench.strategies import STRATEGIES, USERS_OWN, StrategyEntry
from parabench.suite import Suite, Sweep


class AnyProtocol(Interface):
    """What every kind of protocol has: how often each case is launched, and when a launch counts as hung."""

    @property
    def launches(self) -> int: ...  # noqa: D102
    @property
    def deadline_s(self) -> float | None: ...  # noqa: D102


C = TypeVar("C", bound=AnyCase)
P = TypeVar("P", bound=AnyProtocol)

# What a session can measure: its kind of case, and of protocol.
KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "training": (Case, Protocol),
    "collectives": (CollectiveCase, CollectiveProtocol),
}


@dataclass(frozen=True, slots=True)
class Skipped(Generic[C]):
    """A case that this machine cannot run at all, and why."""

    case: C
    reason: str


@dataclass(frozen=True, slots=True)
class Turn(Generic[C]):
    """One launch to come: `case` in `block`, at `position` of it."""

    block: int
    position: int
    case: C


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[C, P]):
    """What a session will do, decided before anything is launched."""

    cases: tuple[C, ...]
    skipped: tuple[Skipped[C], ...]
    protocol: P
    seed: int

    @property
    def kind(self) -> str:
        """What the session measures: a key of KINDS."""
        return next(kind for kind, (_, protocol) in KINDS.items() if isinstance(self.protocol, protocol))

    def turns(self) -> list[Turn[C]]:
        """Every case once a block, each block in its own seeded random order, so that drift hits all cases alike."""
        shuffle = random.Random(self.seed)
        turns = []
        for block in range(self.protocol.launches):
            cases = list(self.cases)
            shuffle.shuffle(cases)
            turns += [Turn(block, position, case) for position, case in enumerate(cases)]
        return turns

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        protocol: Any = self.protocol
        return {
            "kind": self.kind,
            "cases": [case.to_dict() for case in self.cases],
            "skipped": [{"case": s.case.to_dict(), "reason": s.reason} for s in self.skipped],
            "protocol": asdict(protocol),
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan[Any, Any]:
        """The reverse of `to_dict`; without a kind it is of training."""
        case, protocol = KINDS[values.get("kind", "training")]
        return Plan(
            cases=tuple(case.from_dict(each) for each in values["cases"]),
            skipped=tuple(Skipped(case.from_dict(s["case"]), s["reason"]) for s in values["skipped"]),
            protocol=protocol(**values["protocol"]),
            seed=values["seed"],
        )


TrainingPlan = Plan[Case, Protocol]


def make_plan(
    suite: Suite, overrides: Mapping[str, tuple[Any, ...]], protocol: Protocol, machine: Machine, seed: int
) -> TrainingPlan:
    """Expand, check and sort out. Raises UsageError for what is wrong on any machine, for what the user asked for
    by `overrides` and this machine lacks, and when nothing is left to run."""
    cases: list[Case] = []
    skipped: list[Skipped[Case]] = []
    for case, automatic in dict(_cases(suite.override(overrides).sweeps, machine)).items():
        check_names(case)
        reason = refusal(case, machine)
        if reason is not None and ("world_size" in overrides or "device" in overrides):
            raise UsageError(reason)
        if reason is None:
            try:
                check(case)
            except UsageError as error:
                # Nobody asked for a size that `auto` chose, nor for what a suite lists for another backend.
                if not automatic and not (needs_nccl(case) and not overrides.keys() & {"algorithm", "backend"}):
                    raise
                reason = str(error)
        if reason is None:
            cases.append(case)
        else:
            skipped.append(Skipped(case, reason))
    if not cases:
        raise UsageError(f"suite {suite.name}: nothing to run; {skipped[0].reason if skipped else 'no cases'}")
    return Plan(cases=tuple(cases), skipped=tuple(skipped), protocol=protocol, seed=seed)


def strategy_entry(case: Case) -> StrategyEntry:
    """What is known of the case's strategy; a user's own counts as data-parallel."""
    entry = find(STRATEGIES, "strategy", case.strategy)
    return entry if isinstance(entry, StrategyEntry) else USERS_OWN


def _cases(sweeps: tuple[Sweep, ...], machine: Machine) -> Iterator[tuple[Case, bool]]:
    """Every case of the sweeps, and whether its world size was chosen by `auto`."""
    for each in sweeps:
        axes = dict(each.axes)
        names = list(axes)
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(names, values, strict=True))
            size = chosen.pop("world_size", Case().world_size)
            ranks_per_node = chosen.pop("ranks_per_node", None)
            automatic = size == "auto"
            for world_size in _powers_of_two(chosen, machine) if automatic else [size]:
                case = settle(Case(**chosen, world_size=world_size), machine)
                if levels_of(case.algorithm) is not None and ranks_per_node is not None:
                    case = replace(case, ranks_per_node=ranks_per_node)
                yield case, automatic


def _powers_of_two(chosen: Mapping[str, Any], machine: Machine) -> list[int]:
    """1, 2, 4, ... up to the devices, or on the CPU to the cores."""
    on_cuda = chosen.get("device", "auto") == "cuda" or (chosen.get("device", "auto") == "auto" and machine.gpus)
    most = len(machine.gpus) if on_cuda else machine.cores
    return [2**i for i in range(max(1, most).bit_length())]


def settle(case: Case, machine: Machine) -> Case:
    """`case` with everything automatic decided and every axis dropped that its strategy does not have."""
    entry = strategy_entry(case)
    changes = settle_device(case.device, case.backend, machine)
    if "algorithm" not in entry.axes:
        changes["algorithm"] = "native"
    if "bucket_mib" not in entry.axes:
        changes["bucket_mib"] = None
    if entry.one_rank_only:
        changes["world_size"] = 1
    else:
        changes["algorithm"] = canonical(case.algorithm)
    if levels_of(changes["algorithm"]) is None:
        changes["ranks_per_node"] = None
    elif case.ranks_per_node is None:
        changes["ranks_per_node"] = nodes_of(case.world_size)
    if changes.get("world_size", case.world_size) == 1:
        changes["algorithm"], changes["ranks_per_node"] = "native", None
    return replace(case, **changes)


def settle_device(device: str, backend: str, machine: Machine) -> dict[str, Any]:
    """The fields `device` and `backend` with `auto` decided."""
    device = device if device != "auto" else "cuda" if machine.gpus else "cpu"
    return {"device": device, "backend": backend if backend != "auto" else "nccl" if device == "cuda" else "gloo"}


def nodes_of(size: int) -> int:
    """Ranks of a node where none was asked for: one machine has no nodes; the largest proper divisor makes as few
    of them as it can, and a prime's are of one rank each."""
    return next((size // d for d in range(2, math.isqrt(size) + 1) if size % d == 0), 1)


def check_name(kind: str, name: str, table: Mapping[str, Entry]) -> None:
    """Raise UsageError for an unknown name. A user's own is imported: nothing else tells that it is there."""
    if find(table, kind, name) is None:
        own = load(table, kind, name)
        if not callable(own) and not hasattr(own, "all_reduce"):
            raise UsageError(f"{kind} {name!r} is {own!r}; it must be a function, or an Algorithm")


def check_algorithm(name: str, ranks_per_node: int | None) -> None:
    """Raise UsageError for an unknown algorithm. A user's own is made, as every rank will: a function of
    `ranks_per_node` must give an Algorithm. Our own need no look, and so no torch."""
    check_name("algorithm", table_name(name), ALGORITHMS)
    if find(ALGORITHMS, "algorithm", table_name(name)) is None:
        from parabench.collectives.algorithm import make

        make(name, ranks_per_node)


def needs_nccl(case: AnyCase) -> bool:
    """Whether the case's algorithm is NCCL's own, and its backend is not NCCL."""
    return is_nccls(case.algorithm) and case.backend != "nccl"


def check_backend(case: AnyCase) -> None:
    """Raise UsageError for an algorithm or a device that the case's backend does not have."""
    if needs_nccl(case):
        raise UsageError(
            f"algorithm {case.algorithm} is NCCL's own and the backend here is {case.backend}; use backend nccl on "
            "CUDA devices, or an algorithm without nccl: before its name"
        )
    if case.device == "cpu" and case.backend == "nccl":
        raise UsageError("backend nccl needs device cuda; use gloo on the CPU")


def check_names(case: Case) -> None:
    """Raise UsageError for an unknown name."""
    check_name("strategy", case.strategy, STRATEGIES)
    check_algorithm(case.algorithm, case.ranks_per_node)
    check_name("model", case.model, MODELS)


def check(case: Case) -> None:
    """Raise UsageError for a case that makes sense nowhere: a batch or heads that don't divide, data that is short."""
    entry = strategy_entry(case)
    shape = MODELS.get(case.model)
    if entry.splits_batch and case.global_batch % case.world_size:
        raise UsageError(
            f"global_batch {case.global_batch} does not divide by world_size {case.world_size} "
            f"for {case.strategy}; give a multiple"
        )
    if shape is not None and entry.splits_heads and shape.heads % case.world_size:
        raise UsageError(
            f"world_size {case.world_size} does not divide the {shape.heads} heads of {case.model} "
            f"for {case.strategy}; use a divisor"
        )
    if shape is not None and case.seq_len > shape.context:
        raise UsageError(f"seq_len {case.seq_len} is longer than the context of {case.model}, {shape.context}")
    if shape is not None and case.data != "synthetic" and shape.vocabulary < source.BYTES_VOCABULARY:
        raise UsageError(f"model {case.model} knows fewer than 256 tokens; use data synthetic")
    check_backend(case)
    source.check(case.data, case.global_batch * case.seq_len + 1)


def refusal(case: AnyCase, machine: Machine) -> str | None:
    """Why this machine cannot run the case, or None when it can."""
    if case.device == "cuda" and not machine.gpus:
        return f"device cuda is not here: {machine.gpus_reason}; use device cpu"
    if case.device == "cuda" and case.backend == "gloo":
        return None  # gloo lets several ranks share a device
    most = machine.ranks(case.device)
    if case.world_size <= most:
        return None
    if case.device == "cuda":
        return f"world_size {case.world_size} is larger than the {most} device(s) here; use {most} or fewer"
    return (
        f"world_size {case.world_size} is larger than {most}, {RANKS_PER_CORE} ranks on each of the "
        f"{machine.cores} core(s) here; use {most} or fewer"
    )
