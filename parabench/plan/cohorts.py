"""Which cases share a launch, as far as one group of processes and the memory of a machine can hold them."""

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

# What of the memory the training states of a launch may take by theory, where nothing has been launched yet. The rest
# is for activations, buckets, the processes themselves and whoever else is there.
SHARE = 0.5
# What of it may be taken where launches have shown how much a case needs beyond its state.
SEEN_SHARE = 0.9
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


C = TypeVar("C", Case, CollectiveCase)


def why_alone(case: Case | CollectiveCase) -> str | None:
    """Why a case can share its ranks with no other; None where it can."""
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
    """`cases` by those that share a launch, in their order; what can share with none is by itself.

    A launch has as many ranks as its largest case, and the first of them take the turns of a smaller one. On several
    nodes each of these has its part of every case. Settings of the whole process, such as the number of threads and the
    use of TF32, must be equal.

    Those whose training states would not fit into their `room` are split evenly among several launches: into SHARE of
    it, or where launches of their own have shown what all of them `held`, by the case's id, into what of SEEN_SHARE the
    one that needs most beside its state leaves. Cases in another order are split otherwise: as every block has its own,
    each two cases soon meet.
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
    """How much the training states of these cases may take in one launch; None where nobody knows."""
    there = room.get(cases[0].device)
    if there is None:
        return None
    if any(case.id not in held for case in cases):
        return SHARE * there
    beside = max(0.0, *(held[case.id] - state_bytes(case) for case in cases))
    return max(0.0, SEEN_SHARE * there - beside)


def launch_bytes(cases: Sequence[Case], held: Mapping[str, float]) -> float:
    """What `cases` take together in one launch of what each has `held` in one of its own, by the case's id: the state
    of each, and what the one takes besides that needs most; while they are built, all parameters as a whole."""
    # Of a model whose size is not known all of it is state.
    states = {case: min(state_bytes(case) or held[case.id], held[case.id]) for case in cases}
    beside = max(held[case.id] - state for case, state in states.items())
    built = sum((entry_of_model(case).parameters or 0) * DTYPE_BYTES["float32"] for case in cases)
    return max(sum(states.values()) + beside, float(built))


def twin_of(cases: Sequence[Case]) -> Case:
    """The case that `--self-check` measures twice: PyTorch's default where it is one of them, else the first."""
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib")}
    found = (case for case in cases if all(getattr(case, name) == value for name, value in usual.items()))
    return next(found, cases[0])


def state_bytes(case: Case | CollectiveCase) -> float:
    """What parameters, gradients and optimizer state of a case take by theory, at most (as if tensor parallel split
    nothing, and FSDP gathered all parameters at once): on a node, or of an accelerator on that of a rank. 0 of a
    collective, which has buffers of the size that is being measured and no others."""
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
    """Split cases into the fewest even parts whose training states take at most `most` bytes each.

    A case that takes more is by itself.
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
