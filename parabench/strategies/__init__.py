"""Parallel strategies: one recipe a file. This table is free of torch, so that names can be checked at once."""

from dataclasses import dataclass

from parabench.registry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyEntry(Entry):
    """What the planner must know of a strategy before anything is launched.

    `axes`: which of the optional axes it has (a sweep drops the others). `splits_batch`: each rank takes its
    part of the global batch, else every rank sees all of it. `splits_heads`: world size must divide the heads.
    """

    axes: frozenset[str] = frozenset({"algorithm", "bucket_mib"})
    one_rank_only: bool = False
    splits_batch: bool = True
    splits_heads: bool = False


STRATEGIES: dict[str, StrategyEntry] = {
    "single": StrategyEntry(
        target="parabench.strategies.single:single",
        summary="one device: the reference",
        axes=frozenset(),
        one_rank_only=True,
    ),
    "ddp": StrategyEntry(
        target="parabench.strategies.ddp:ddp",
        summary="DistributedDataParallel: a replica a rank, gradients all-reduced in buckets",
    ),
    "fsdp": StrategyEntry(
        target="parabench.strategies.fsdp:fsdp",
        summary="FSDP2: parameters, gradients and optimizer state sharded; all-gather and reduce-scatter a unit",
    ),
    "tp": StrategyEntry(
        target="parabench.strategies.tp:tp",
        summary="tensor parallel: attention and MLP split column- then row-wise; activations all-reduced",
        axes=frozenset({"algorithm"}),
        splits_batch=False,
        splits_heads=True,
    ),
}

# What is assumed of a user's own strategy: a data-parallel one with every axis.
USERS_OWN = StrategyEntry(target="", summary="a user's own")
