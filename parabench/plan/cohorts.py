"""Group cases that can share a launch: the same kind of processes, within the machine's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from parabench.collectives.nccl import is_nccls
from parabench.machine import accelerator
from parabench.machine.machine import Room
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.validate import entry_of_model
from parabench.strategies import WHOLE, ModelShape, Rule, entry_of

# The share of the memory for the computed model states of a launch. The rest is for activations, buckets, the processes
# themselves and other users.
SHARE = 0.5
# The share of the memory for a launch if earlier launches have measured the memory that each case needs.
SEEN_SHARE = 0.9
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


C = TypeVar("C", Case, CollectiveCase)


def why_alone(case: Case | CollectiveCase) -> str | None:
    """Return why a case must have a separate launch; None if other cases can share its launch."""
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
    cases: Sequence[C], room: Room | None = None, held: Mapping[str, float] | None = None
) -> list[tuple[C, ...]]:
    """Return `cases` in groups that share a launch, in their order. Groups whose model states exceed `room` are split.

    Args:
        room: the bytes of memory for a launch, by device.
        held: the bytes that a separate launch of each case used, by case id.
    """
    found: dict[object, list[C]] = {}
    # Smaller cases use the first ranks of a launch. On several nodes, all cases need equal numbers of ranks. Settings
    # of the whole process, such as the number of threads and the use of TF32, must be equal. `_split` depends on the
    # order of the cases, which differs in each repetition. Therefore any two cases soon share a launch.
    for case in cases:
        ranks = case.world_size if case.nodes > 1 else None
        tf32 = isinstance(case, Case) and case.arithmetic.allows_tf32
        alike = (ranks, case.nodes, case.device, case.backend, case.threads, tf32)
        found.setdefault(case if why_alone(case) else alike, []).append(case)
    return [part for each in found.values() for part in _split(each, room or {}, held or {})]


def _split(cases: Sequence[C], room: Room, held: Mapping[str, float]) -> list[tuple[C, ...]]:
    """Split cases into the fewest even parts that fit into memory. A case that is too large has a separate launch."""
    there = room.get(cases[0].device)
    if there is None:
        return [tuple(cases)]
    states = {case: state_bytes(case) for case in cases}
    most = SHARE * there
    if all(case.id in held for case in cases):
        most = max(0.0, SEEN_SHARE * there - max(0.0, *(held[case.id] - states[case] for case in cases)))
    large = [(case,) for case in cases if states[case] > most]
    small = [case for case in cases if states[case] <= most]
    parts: list[list[C]] = []
    for count in range(1, len(small) + 1):
        parts, filled = [[] for _ in range(count)], [0.0] * count
        for case in small:
            least = filled.index(min(filled))
            parts[least].append(case)
            filled[least] += states[case]
        if max(filled) <= most:
            break
    return large + [tuple(part) for part in parts if part]


def launch_bytes(cases: Sequence[Case], held: Mapping[str, float]) -> float:
    """Return the bytes that one launch of all `cases` needs: all model states, and the largest other memory.

    `held` has the bytes that a separate launch of each case used, by case id.
    """
    # If the size of a model is unknown, all of its memory counts as model states.
    states = {case: min(state_bytes(case) or held[case.id], held[case.id]) for case in cases}
    largest_other = max(held[case.id] - state for case, state in states.items())
    # While models are built, every parameter is whole on each rank.
    built = sum((entry_of_model(case).parameters or 0) * DTYPE_BYTES["float32"] for case in cases)
    return max(sum(states.values()) + largest_other, float(built))


def twin_of(cases: Sequence[Case]) -> Case:
    """Return the case that `--aa` measures twice: PyTorch's default configuration, or else the first case."""
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib")}
    found = (case for case in cases if all(getattr(case, name) == value for name, value in usual.items()))
    return next(found, cases[0])


def state_bytes(case: Case | CollectiveCase) -> float:
    """Return an upper bound of the bytes of a case's model states: per accelerator, or per node on the CPU.

    The bound assumes that tensor parallelism splits nothing and that FSDP gathers all parameters at once. Collectives
    have no model states.
    """
    if isinstance(case, CollectiveCase):
        return 0.0
    whole = float((entry_of_model(case).parameters or 0) * DTYPE_BYTES[case.arithmetic.parameters])
    ranks = case.world_size
    sharing, node = case.tp_size or ranks, case.ranks_per_node or ranks
    shape = ModelShape(whole=whole, tensor=0.0, root=whole, ranks=ranks, sharing=sharing, node=node)
    of_rank = sum((entry_of(case.strategy).memory or WHOLE).states(shape))
    return of_rank if case.device == accelerator.TYPE else of_rank * ranks / case.nodes
