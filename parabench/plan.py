"""The plan: a suite's sweeps become checked cases, what this machine can't run is set aside, blocks get an order."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from parabench.case import Case, Protocol
from parabench.collectives import ALGORITHMS, canonical, is_nccls, levels_of, table_name
from parabench.data import source
from parabench.errors import UsageError
from parabench.machine import RANKS_PER_CORE, Machine
from parabench.models import MODELS
from parabench.registry import find, load
from parabench.strategies import STRATEGIES, USERS_OWN, StrategyEntry
from parabench.suite import Suite, Sweep


@dataclass(frozen=True, slots=True)
class Skipped:
    """A case that this machine cannot run at all, and why."""

    case: Case
    reason: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One launch to come: `case` in `block`, at `position` of it."""

    block: int
    position: int
    case: Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a session will do, decided before anything is launched."""

    cases: tuple[Case, ...]
    skipped: tuple[Skipped, ...]
    protocol: Protocol
    seed: int

    def turns(self) -> list[Turn]:
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
        return {
            "cases": [case.to_dict() for case in self.cases],
            "skipped": [{"case": s.case.to_dict(), "reason": s.reason} for s in self.skipped],
            "protocol": asdict(self.protocol),
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The reverse of `to_dict`."""
        return cls(
            cases=tuple(Case.from_dict(case) for case in values["cases"]),
            skipped=tuple(Skipped(Case.from_dict(s["case"]), s["reason"]) for s in values["skipped"]),
            protocol=Protocol(**values["protocol"]),
            seed=values["seed"],
        )


def make_plan(
    suite: Suite, overrides: Mapping[str, tuple[Any, ...]], protocol: Protocol, machine: Machine, seed: int
) -> Plan:
    """Expand, check and sort out. Raises UsageError for what is wrong on any machine, for what the user asked for
    by `overrides` and this machine lacks, and when nothing is left to run."""
    cases: list[Case] = []
    skipped: list[Skipped] = []
    for case, automatic in dict(_cases(suite.override(overrides).sweeps, machine)).items():
        check_names(case)
        reason = refusal(case, machine)
        if reason is not None and ("world_size" in overrides or "device" in overrides):
            raise UsageError(reason)
        if reason is None:
            try:
                check(case)
            except UsageError as error:
                # Nobody asked for a size that `auto` chose.
                if not automatic:
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
    device = case.device if case.device != "auto" else "cuda" if machine.gpus else "cpu"
    backend = case.backend if case.backend != "auto" else "nccl" if device == "cuda" else "gloo"
    changes: dict[str, Any] = {"device": device, "backend": backend}
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
        # One machine has no nodes; the largest proper divisor makes two of them where it can.
        size = case.world_size
        changes["ranks_per_node"] = next((size // d for d in range(2, math.isqrt(size) + 1) if size % d == 0), 1)
    if changes.get("world_size", case.world_size) == 1:
        changes["algorithm"], changes["ranks_per_node"] = "native", None
    return replace(case, **changes)


def check_names(case: Case) -> None:
    """Raise UsageError for an unknown name. A user's own is imported: nothing else tells that it is there."""
    tables = (
        ("strategy", case.strategy, STRATEGIES),
        ("algorithm", table_name(case.algorithm), ALGORITHMS),
        ("model", case.model, MODELS),
    )
    for kind, name, table in tables:
        if find(table, kind, name) is None:
            own = load(table, kind, name)
            if not callable(own) and not hasattr(own, "all_reduce"):
                raise UsageError(f"{kind} {name!r} is {own!r}; it must be a function, or an Algorithm")


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
    if is_nccls(case.algorithm) and case.backend != "nccl":
        raise UsageError(
            f"algorithm {case.algorithm} is NCCL's own and the backend here is {case.backend}; use backend nccl on "
            "CUDA devices, or an algorithm without nccl: before its name"
        )
    if case.device == "cpu" and case.backend == "nccl":
        raise UsageError("backend nccl needs device cuda; use gloo on the CPU")
    source.check(case.data, case.global_batch * case.seq_len + 1)


def refusal(case: Case, machine: Machine) -> str | None:
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
