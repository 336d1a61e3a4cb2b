"""Which cases share a launch, as far as one group of processes and the memory of a machine can hold them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from operator import attrgetter
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
    may_share_modules: bool = False,
) -> list[tuple[C, ...]]:
    """`cases` by those that share a launch, in their order; what can share with none is by itself.

    A launch has as many ranks as its largest case, and the first of them take the turns of a smaller one. On several
    nodes each of these has its part of every case. Settings of the whole process, such as the number of threads and the
    use of TF32, must be equal.

    Those whose training states would not fit into their `room` are split evenly among several launches: into SHARE of
    it, or where launches of their own have shown what all of them `held`, by the case's id, into what of SEEN_SHARE the
    one that needs most beside its state leaves. Cases in another order are split otherwise: as every block has its own,
    each two cases soon meet. Where it takes fewer launches, and `may_share_modules`, cases with a module in common
    (`module_of`) have one training state.
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
        if most is None:
            parts.append(tuple(each))
            continue
        own = _split([[case] for case in each], most)
        modules = _split(_by_module(each), most) if may_share_modules and len(own) > 1 else own
        parts += own if len(own) <= len(modules) else modules
    return parts


def module_of(case: Case | CollectiveCase) -> object:
    """What cases of DDP have in common that differ in nothing but how gradients travel: a module that one wraps can be
    wrapped anew for another. Any other case is its own."""
    # A static graph is learnt in the first backward, and compiled code is split by the first wrapper's buckets.
    wrapped = isinstance(case, Case) and case.strategy == "ddp" and not (case.static_graph or case.compile)
    return _OF_MODULE(case) if wrapped else case


def modules_of(cases: Sequence[Case | CollectiveCase]) -> list[object]:
    """What tells the module of each case of a launch: its place where it has its own, so of a twin's too."""
    modules = map(module_of, cases)
    return [at if module is case else module for at, (case, module) in enumerate(zip(cases, modules, strict=True))]


_OF_MODULE = attrgetter(*(name for name in DEFAULTS if name not in ("bucket_mib", "algorithm", "ranks_per_node")))


def share_modules(cases: Sequence[Case], room: Room | None = None, held: Mapping[str, float] | None = None) -> bool:
    """Whether these cases of a launch fit into their `room` only with one training state for all with a module in
    common; see `cohorts`."""
    most = _most(cases, room or {}, held or {})
    return most is not None and sum(map(state_bytes, cases)) > most and len(_by_module(cases)) < len(cases)


def _by_module(cases: Sequence[C]) -> list[list[C]]:
    found: dict[object, list[C]] = {}
    for case, module in zip(cases, modules_of(cases), strict=True):
        found.setdefault(module, []).append(case)
    return list(found.values())


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


def _split(modules: Sequence[Sequence[C]], most: float) -> list[tuple[C, ...]]:
    """The fewest even parts of the cases of `modules`, each of which has one training state, so that none takes more; a
    module that takes more is by itself."""
    states = [max(map(state_bytes, cases)) for cases in modules]
    large = [tuple(cases) for cases, state in zip(modules, states, strict=True) if state > most]
    for count in itertools.count(1):
        parts: list[list[C]] = [[] for _ in range(count)]
        held = [0.0] * count
        for cases, state in zip(modules, states, strict=True):
            if state <= most:
                least = held.index(min(held))
                parts[least] += cases
                held[least] += state
        if max(held) <= most:
            return large + [tuple(part) for part in parts if part]
    raise AssertionError("itertools.count never ends")
