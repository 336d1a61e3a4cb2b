"""Group the cases that share a launch, within the limits of one process group and of the machine's memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

from parabench.collectives.nccl import is_nccls
from parabench.machine import accelerator
from parabench.machine.machine import Room
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.validate import entry_of_model
from parabench.strategies import Rule, entry_of
from parabench.strategies.memory import WHOLE, Shape

# The share of the memory for the computed model states of a launch. The rest is for activations, buckets, the processes
# themselves and other users.
SHARE = 0.5
# The share if launches have shown how much a case needs beyond its model states.
SEEN_SHARE = 0.9
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


C = TypeVar("C", Case, CollectiveCase)


def why_alone(case: Case | CollectiveCase) -> str | None:
    """Return why a case cannot share its ranks with others; None if it can."""
    if isinstance(case, Case):
        entry = entry_of(case.strategy)
        if entry.one_process:
            return f"{case.strategy} runs in one process"
        if entry.rule is Rule.APPLIED_ONCE:
            return f"ranks of {case.strategy} do not take their steps together"
        if entry.package is not None:
            return f"{entry.package} sets up the whole process"
    if is_nccls(case.algorithm):
        return f"{case.algorithm} is set for a whole process, in NCCL's environment"
    return None


def cohorts(
    cases: Sequence[C],
    room: Room | None = None,
    held: Mapping[str, float] | None = None,
) -> list[tuple[C, ...]]:
    """Return `cases` in groups that share a launch, in their order.

    A launch has as many ranks as its largest case; smaller cases use the first of them. On several nodes, cases of one
    launch have equal numbers of ranks. Settings of the whole process, such as the number of threads and the use of
    TF32, must be equal.

    If model states exceed the `room`, the cases are split evenly among several launches. The split depends on the order
    of the cases. Each repetition has another order, so each two cases soon share a launch.

    Args:
        room: the memory for a launch by device.
        held: the memory that a separate launch of each case used, by case id.
    """
    found: dict[object, list[C]] = {}
    for case in cases:
        ranks = case.world_size if case.nodes > 1 else None
        tf32 = isinstance(case, Case) and case.arithmetic.allows_tf32
        alike = (ranks, case.nodes, case.device, case.backend, case.threads, tf32)
        found.setdefault(case if why_alone(case) else alike, []).append(case)
    parts: list[tuple[C, ...]] = []
    for each in found.values():
        most = _most(each, room or {}, held or {})
        parts += [tuple(each)] if most is None else _split(each, most)
    return parts


def _most(cases: Sequence[Case | CollectiveCase], room: Room, held: Mapping[str, float]) -> float | None:
    """Return how much the model states of these cases may take in one launch, in bytes; None if it is unknown."""
    there = room.get(cases[0].device)
    if there is None:
        return None
    if any(case.id not in held for case in cases):
        return SHARE * there
    beside = max(0.0, *(held[case.id] - state_bytes(case) for case in cases))
    return max(0.0, SEEN_SHARE * there - beside)


def launch_bytes(cases: Sequence[Case], held: Mapping[str, float]) -> float:
    """Return the memory of one launch of all `cases`, in bytes, from what separate launches `held` by case id.

    This is the sum of the model states and the largest rest of a case. While models are built, every parameter is whole
    on each rank.
    """
    # If the size of a model is unknown, all of its memory counts as model states.
    states = {case: min(state_bytes(case) or held[case.id], held[case.id]) for case in cases}
    beside = max(held[case.id] - state for case, state in states.items())
    built = sum((entry_of_model(case).parameters or 0) * DTYPE_BYTES["float32"] for case in cases)
    return max(sum(states.values()) + beside, float(built))


def twin_of(cases: Sequence[Case]) -> Case:
    """Return the case that `--self-check` measures twice: PyTorch's default if it is among them, else the first."""
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib")}
    found = (case for case in cases if all(getattr(case, name) == value for name, value in usual.items()))
    return next(found, cases[0])


def state_bytes(case: Case | CollectiveCase) -> float:
    """Return an upper bound of the model states of a case in bytes, per node, or per accelerator.

    The bound assumes that tensor parallelism splits nothing and that FSDP gathers all parameters at once. Collectives
    have no model states.
    """
    if isinstance(case, CollectiveCase):
        return 0.0
    whole = float((entry_of_model(case).parameters or 0) * DTYPE_BYTES[case.arithmetic.parameters])
    ranks = case.world_size
    shape = Shape(
        whole=whole,
        tensor=0.0,
        root=whole,
        ranks=ranks,
        sharing=case.tp_size or ranks,
        node=case.ranks_per_node or ranks,
    )
    state = (entry_of(case.strategy).memory or WHOLE).state(shape)
    of_rank = state.parameters + state.gradients + state.optimizer
    return of_rank if case.device == accelerator.TYPE else of_rank * ranks / case.nodes


def _split(cases: Sequence[C], most: float) -> list[tuple[C, ...]]:
    """Split cases into the fewest even parts whose model states take at most `most` bytes each.

    A case that takes more has a separate launch.
    """
    states = [state_bytes(case) for case in cases]
    large = [(case,) for case, state in zip(cases, states, strict=True) if state > most]
    for count in itertools.count(1):
        parts: list[list[C]] = [[] for _ in range(count)]
        held = [0.0] * count
        for case, state in zip(cases, states, strict=True):
            if state <= most:
                least = held.index(min(held))
                parts[least].append(case)
                held[least] += state
        if max(held) <= most:
            return large + [tuple(part) for part in parts if part]
    raise AssertionError("itertools.count never ends")
