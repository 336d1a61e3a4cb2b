"""Choose the configurations that `parabench predict` predicts, from its options and from measured configurations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from parabench.analysis.prediction.base import MEASURED_APART, Base
from parabench.collectives import canonical, levels_of
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.suite import with_global_batch
from parabench.plan.validate import check_names
from parabench.strategies import OPTIONAL, STRATEGIES, entry_of

# Fields that have their own option, or follow from others.
NOT_ASKED = ("world_size", "nodes", "ranks_per_node", "device", "backend")

Axes = Mapping[str, tuple[Any, ...]]


def cases(base: Base, world_sizes: Sequence[int], axes: Axes, ranks_per_node: int | None = None) -> list[Case]:
    """Return the cases with these world sizes and the values of `axes`; other fields are as measured.

    By default, `ranks_per_node` is the capacity of the measured machine. Raises UsageError if an option does not fit.
    """
    strategies = _strategies(base, axes)
    for name in axes:
        if name in NOT_ASKED:
            raise UsageError(
                f"--set {name} is not for predictions: devices are those that were measured, and ranks are given by "
                "--world-size and --ranks-per-node"
            )
        if not any(_has(strategy, name) for strategy in strategies):
            raise UsageError(f"--set {name} makes no sense here: {', '.join(strategies)} has no such option; drop it")
    found: dict[Case, None] = {}
    full = ranks_per_node or base.per_node
    for strategy, world_size in itertools.product(strategies, world_sizes):
        if world_size > full and world_size % full:
            raise UsageError(
                f"world size {world_size} does not fill nodes of {full} ranks; give a multiple, or another "
                "--ranks-per-node"
            )
        chosen_axes = {name: values for name, values in axes.items() if name != "strategy" and _has(strategy, name)}
        for values in itertools.product(*chosen_axes.values()):
            chosen = dict(zip(chosen_axes, values, strict=True))
            like = _pattern(base, strategy, chosen, world_size)
            found[grown(like, world_size, max(1, world_size // full), chosen)] = None
    return list(found)


def candidates(base: Base, world_size: int, axes: Axes, ranks_per_node: int | None = None) -> list[Case]:
    """Return the cases to choose the fastest from, for one world size.

    They have every measured strategy, every measured algorithm, and DDP's usual bucket caps, unless `axes` has others.
    Raises UsageError if there is no such case.
    """
    algorithms = tuple(dict.fromkeys(row.algorithm for row in base.rows)) or ("native",)
    whole: Axes = {"algorithm": algorithms, "bucket_mib": (None, 1, 2, 4, 10, 25, 100), **axes}
    found: list[Case] = []
    why = UsageError("no configuration was measured to choose from")
    for strategy in _strategies(base, axes):
        chosen_axes = {name: values for name, values in whole.items() if name in axes or _has(strategy, name)}
        try:
            some = cases(base, [world_size], {**chosen_axes, "strategy": (strategy,)}, ranks_per_node)
        except UsageError as error:  # other strategies may have such a case
            why = error
            continue
        found += [each for each in some if each.bucket_mib is None or entry_of(strategy).takes_caps]
    if not found:
        raise why
    return found


def _strategies(base: Base, axes: Axes) -> tuple[str, ...]:
    """Return the strategies in `axes`, by default all measured ones. Raises UsageError if one was not measured."""
    known = tuple(dict.fromkeys(each.case.strategy for each in base.computed))
    asked: tuple[str, ...] = axes.get("strategy", known)
    for strategy in asked:
        if strategy in known:
            continue
        entry = STRATEGIES.get(strategy)
        if entry is not None and (entry.ranks_differ or "algorithm" not in entry.axes):
            raise UsageError(f"{strategy} cannot be predicted, because its ranks do different things or share no links")
        raise UsageError(
            f"what ranks of {strategy!r} compute was not measured; use {', '.join(known)}, or measure it: "
            f"parabench run calibration --set strategy={strategy}"
        )
    return asked


def _pattern(base: Base, strategy: str, chosen: Mapping[str, Any], world_size: int) -> Case:
    """Return the measured case of a strategy that differs least from the `chosen` values and the world size.

    Raises UsageError if several cases differ as little, but not only in the number of ranks.
    """

    def unlike(case: Case) -> int:
        return sum(getattr(case, name) != value for name, value in chosen.items() if name in MEASURED_APART)

    of = [each.case for each in base.computed if each.case.strategy == strategy]
    like = min(of, key=lambda case: (unlike(case), abs(case.world_size - world_size)))
    for name in MEASURED_APART:
        values = list(dict.fromkeys(str(getattr(case, name)) for case in of if unlike(case) == unlike(like)))
        if len(values) > 1:
            remedy = "the databases of one" if name in NOT_ASKED else f"one of them: --set {name}={values[0]}"
            raise UsageError(f"{strategy} was measured with {name} {' and '.join(values)}; give {remedy}")
    return like


def _has(strategy: str, axis: str) -> bool:
    """Return whether an axis has an effect on a strategy."""
    return axis not in OPTIONAL or axis in entry_of(strategy).axes


def grown(like: Case, world_size: int, nodes: int, values: Mapping[str, Any]) -> Case:
    """Return the case `like` with `world_size` ranks, the same samples per rank, and `values`.

    Raises UsageError if the global batch in `values` does not divide among the ranks.
    """
    samples = like.global_batch // like.data_ranks
    case = like.replace(world_size=world_size, nodes=nodes, global_batch=world_size, ranks_per_node=None)
    case = case.replace(**{"global_batch": samples * case.data_ranks, **with_global_batch(values, world_size)})
    if case.global_batch % case.data_ranks:
        raise UsageError(
            f"global_batch {case.global_batch} does not divide among the {case.data_ranks} ranks of "
            f"{case.strategy}; give a multiple"
        )
    algorithm = canonical(case.algorithm)
    groups = world_size // nodes if levels_of(algorithm) or "ranks_per_node" in entry_of(case.strategy).axes else None
    case = case.replace(algorithm=algorithm, ranks_per_node=groups)
    check_names(case)
    return case
