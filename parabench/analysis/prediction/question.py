"""What `parabench predict` is asked: cases that a base can say something of, by axes and world sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from parabench.analysis.prediction.base import MEASURED_APART, Base
from parabench.collectives import canonical, levels_of
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.pipeline_schedule import automatic
from parabench.plan.suite import with_global_batch
from parabench.plan.validate import check_names
from parabench.strategies import OPTIONAL, STRATEGIES, entry_of

# What is asked by an option of its own, or follows from others.
NOT_ASKED = ("world_size", "nodes", "ranks_per_node", "device", "backend")


def cases(
    base: Base, world_sizes: Sequence[int], axes: Mapping[str, tuple[Any, ...]], ranks_per_node: int | None = None
) -> list[Case]:
    """The cases of these world sizes, `ranks_per_node` on each node (as many as were measured at most), with the values
    of `axes`; what they leave open is as it was measured. Raises UsageError for what makes no case."""
    for name in axes:
        if name in NOT_ASKED:
            raise UsageError(
                f"--set {name} is not for predictions: devices are those that were measured, and ranks are given by "
                "--world-size and --ranks-per-node"
            )
    per_node = ranks_per_node or most_together(base)
    known = dict.fromkeys(each.case.strategy for each in base.computed)
    strategies = axes.get("strategy", tuple(known))
    for strategy in strategies:
        if strategy not in known:
            have = ", ".join(known)
            entry = STRATEGIES.get(strategy)
            can = entry is not None and ("algorithm" in entry.axes or entry.ranks_differ)
            measure = f"measure it: parabench run foresight --set strategy={strategy}"
            raise UsageError(
                f"what ranks of {strategy!r} compute was not measured; use {have}"
                + (f", or {measure}" if can else ": it cannot be measured alone")
            )
    for name in axes:
        if not any(_has(strategy, name) for strategy in strategies):
            raise UsageError(f"--set {name} makes no sense here: {', '.join(strategies)} has no such option; drop it")
    found: dict[Case, None] = {}
    for strategy, world_size in itertools.product(strategies, world_sizes):
        nodes = nodes_filled(world_size, per_node)
        of = [each.case for each in base.computed if each.case.strategy == strategy]
        own = {name: values for name, values in axes.items() if name != "strategy" and _has(strategy, name)}
        for values in itertools.product(*own.values()):
            chosen = dict(zip(own, values, strict=True))
            like = _pattern(of, chosen, world_size)
            _check_one_pattern(like, [case for case in of if _unlike(case, chosen) == _unlike(like, chosen)])
            found[_case(like, world_size, nodes, chosen)] = None
    return list(found)


def asked(
    base: Base, world_sizes: Sequence[int], axes: Mapping[str, tuple[Any, ...]], ranks_per_node: int | None = None
) -> dict[Case, str | None]:
    """`cases`, each with why it is refused where so many ranks do not fill nodes (as a case of one node), else None."""
    per_node = ranks_per_node or most_together(base)
    found: dict[Case, str | None] = {}
    for world_size in world_sizes:
        here, refused = per_node, None
        try:
            nodes_filled(world_size, per_node)
        except UsageError as why:
            here, refused = world_size, str(why)
        found |= dict.fromkeys(cases(base, [world_size], axes, here), refused)
    return found


def _pattern(of: Sequence[Case], chosen: Mapping[str, Any], world_size: int) -> Case:
    """What of a strategy was measured with the values that are asked for, and is the pattern of the rest. A suite's
    sweeps can have a strategy with several batches: the one that most cases have is meant. Tensor parallel, whose ranks
    all have the whole batch, computes otherwise at each world size: the nearest is meant."""
    samples = Counter(case.global_batch // case.data_ranks for case in of if case.data_ranks > 1)
    return min(
        of,
        key=lambda case: (
            _unlike(case, chosen),
            -samples[case.global_batch // case.data_ranks] if case.data_ranks > 1 else 0,
            abs(case.world_size - world_size),
        ),
    )


def most_together(base: Base) -> int:
    """How many ranks of a node computed at the same time, at most. Of strategies whose ranks differ all compute on one
    machine, whatever nodes they are for: these count only where there is nothing else."""
    alike = [each.per_node for each in base.computed if not entry_of(each.case.strategy).ranks_differ]
    return max(alike or (each.per_node for each in base.computed))


def nodes_filled(world_size: int, ranks_per_node: int) -> int:
    """How many nodes so many ranks fill. Raises UsageError where some would be filled in part."""
    if world_size <= ranks_per_node:
        return 1
    if world_size % ranks_per_node:
        raise UsageError(
            f"world size {world_size} does not fill nodes of {ranks_per_node} ranks; give a multiple, or another "
            "--ranks-per-node"
        )
    return world_size // ranks_per_node


def _unlike(case: Case, values: Mapping[str, Any]) -> int:
    """In how many of the values a case differs."""
    return sum(getattr(case, name) != value for name, value in values.items() if name in MEASURED_APART)


def _check_one_pattern(like: Case, others: Sequence[Case]) -> None:
    """Raise UsageError where cases that differ in more than the number of ranks could be meant."""
    for name in MEASURED_APART:
        values = dict.fromkeys(str(getattr(case, name)) for case in (like, *others))
        if len(values) > 1:
            how = (
                "give the stores of one"
                if name in NOT_ASKED
                else f"give one of them: --set {name}={next(iter(values))}"
            )
            raise UsageError(f"{like.strategy} was measured with {name} {' and '.join(values)}; {how}")


def _has(strategy: str, axis: str) -> bool:
    return axis not in OPTIONAL or axis in entry_of(strategy).axes


def _case(like: Case, world_size: int, nodes: int, values: Mapping[str, Any]) -> Case:
    samples = like.global_batch // like.data_ranks
    case = replace(like, world_size=world_size, nodes=nodes, global_batch=world_size, ranks_per_node=None)
    case = replace(case, **{"global_batch": samples * case.data_ranks, **with_global_batch(values, world_size)})
    if case.global_batch % case.data_ranks:
        raise UsageError(
            f"global_batch {case.global_batch} does not divide among the {case.data_ranks} ranks of "
            f"{case.strategy}; give a multiple"
        )
    has = "microbatches" in entry_of(case.strategy).axes and "microbatches" not in values
    if has and like.microbatches == automatic(like.schedule, like.world_size, like.global_batch):
        # What was chosen by the number of ranks is chosen anew.
        case = replace(case, microbatches=automatic(case.schedule, case.world_size, case.global_batch))
    algorithm = canonical(case.algorithm)
    groups = world_size // nodes if levels_of(algorithm) or "ranks_per_node" in entry_of(case.strategy).axes else None
    case = replace(case, algorithm=algorithm, ranks_per_node=groups)
    check_names(case)
    return case


def candidates(
    base: Base, world_size: int, ranks_per_node: int | None = None, chosen: Mapping[str, tuple[Any, ...]] | None = None
) -> list[Case]:
    """What a choice is made of: every strategy that was computed, each algorithm that was timed, and DDP's usual caps,
    as far as nothing else is `chosen`. Raises UsageError where there is no such case."""
    algorithms = tuple(dict.fromkeys(each.algorithm for each in base.collectives)) or ("native",)
    axes = {"algorithm": algorithms, "bucket_mib": (None, 1, 2, 4, 10, 25, 100)} | dict(chosen or {})
    strategies = axes.pop("strategy", tuple(dict.fromkeys(each.case.strategy for each in base.computed)))
    found: list[Case] = []
    why: UsageError | None = None
    for strategy in strategies:
        own = {name: values for name, values in axes.items() if name in (chosen or {}) or _has(strategy, name)}
        try:
            some = cases(base, [world_size], {"strategy": (strategy,), **own}, ranks_per_node)
        except UsageError as error:  # this one has no such case, others may
            why = why or error
            continue
        found += [each for each in some if each.bucket_mib is None or entry_of(strategy).takes_caps]
    if not found:
        raise why or UsageError("nothing was computed that a choice could be made of")
    return found
