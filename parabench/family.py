"""The family of strategies: what must be known of each before anything is launched, and without torch.

How each one is done stands in `parabench/strategies/`, a recipe a file.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from enum import StrEnum

from parabench.registry import Entry


class Layout(StrEnum):
    """What a rank has to itself."""

    DATA = "data"  # its part of the batch
    TENSOR = "tensor"  # its part of every layer, and the whole batch
    GRID = "grid"  # both: tensor parallel inside groups of tp_size ranks, data parallel between them
    PIPELINE = "pipeline"  # its layers, and the whole batch


class Rule(StrEnum):
    """What proves that a launch trained as it should."""

    REFERENCE = "reference"  # every loss and the first gradient are those of one device
    FIRST_LOSS = "first_loss"  # ranks drift apart on purpose: only the first loss can be that of one device
    APPLIED_ONCE = "applied_once"  # each gradient reached the parameters exactly once, and the loss fell


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyEntry(Entry):
    """What the planner and the reader of results must know of a strategy.

    `axes`: which of the OPTIONAL axes it has. `splits` and `travels`: what is divided between ranks, and what goes
    over the wire when. `needs`: what the model must bring ("blocks", "tensor_parallel"). `one_process`: a single
    process drives all devices. `ranked`: whether it may be an answer. `package`: what must be installed, as pip
    calls it.
    """

    axes: frozenset[str] = frozenset()
    layout: Layout = Layout.DATA
    rule: Rule = Rule.REFERENCE
    needs: frozenset[str] = frozenset()
    splits: str = ""
    travels: str = ""
    one_rank_only: bool = False
    one_process: bool = False
    ranked: bool = True
    package: str | None = None

    @property
    def missing(self) -> str | None:
        """The package that is needed and not installed, as pip calls it."""
        absent = self.package is not None and importlib.util.find_spec(self.package) is None
        return self.package if absent else None


# Axes that only some strategies have; a sweep over several strategies drops them for the others.
OPTIONAL = (
    "algorithm",
    "bucket_mib",
    "ranks_per_node",
    "grad_accumulation",
    "no_sync",
    "find_unused_parameters",
    "static_graph",
    "gradient_as_bucket_view",
    "tp_size",
    "sequence_parallel",
    "schedule",
    "microbatches",
)

_REDUCING = frozenset({"algorithm", "bucket_mib", "grad_accumulation", "no_sync"})
_DDP = _REDUCING | {"find_unused_parameters", "static_graph", "gradient_as_bucket_view"}
_TENSOR = frozenset({"algorithm", "sequence_parallel", "grad_accumulation"})
_ALONE = frozenset({"grad_accumulation"})

STRATEGIES: dict[str, StrategyEntry] = {
    "single": StrategyEntry(
        target="parabench.strategies.single:single",
        summary="one device: the reference",
        axes=_ALONE,
        splits="nothing",
        travels="nothing",
        one_rank_only=True,
    ),
    "ddp": StrategyEntry(
        target="parabench.strategies.ddp:ddp",
        summary="DistributedDataParallel: a replica a rank, gradients all-reduced in buckets",
        axes=_DDP,
        splits="batch",
        travels="gradients, all-reduced in buckets during backward",
    ),
    "fsdp": StrategyEntry(
        target="parabench.strategies.fsdp:fsdp",
        summary="FSDP2: parameters, gradients and optimizer state sharded; all-gather and reduce-scatter a unit",
        axes=_REDUCING,
        splits="batch, parameters, gradients, optimizer state",
        travels="parameters gathered for forward and again for backward, gradients reduce-scattered",
    ),
    "tp": StrategyEntry(
        target="parabench.strategies.tp:tp",
        summary="tensor parallel: attention and MLP split column- then row-wise; activations all-reduced",
        axes=_TENSOR,
        layout=Layout.TENSOR,
        needs=frozenset({"tensor_parallel"}),
        splits="layers, with their gradients and optimizer state",
        travels="activations, all-reduced in forward and their gradients in backward",
    ),
}

# What is assumed of a user's own strategy: a data-parallel one with every axis.
USERS_OWN = StrategyEntry(target="", summary="a user's own", axes=frozenset(OPTIONAL), splits="batch")


def entry_of(strategy: str) -> StrategyEntry:
    """What is known of a strategy; a user's own counts as data-parallel."""
    return STRATEGIES.get(strategy, USERS_OWN)


def data_ranks(strategy: str, world_size: int, tp_size: int | None) -> int:
    """Into how many ranks' parts the global batch is split."""
    layout = entry_of(strategy).layout
    if layout is Layout.DATA:
        return world_size
    return world_size // (tp_size or 1) if layout is Layout.GRID else 1
