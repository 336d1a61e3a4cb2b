"""The table of strategies: the facts that are required before a launch, and formulas for memory. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from parabench.registry import Entry


class Layout(StrEnum):
    """The division of a training step between ranks. Each value names the part that differs between ranks."""

    DATA = "data"  # a part of the batch
    TENSOR = "tensor"  # a part of every layer
    GRID = "grid"  # both: tensor parallel inside groups of tp_size ranks, data parallel between them
    PIPELINE = "pipeline"  # some layers


class Rule(StrEnum):
    """The check that a launch of a strategy must pass to count as correct."""

    REFERENCE = "reference"  # every loss and the first gradient equal one device's
    FIRST_LOSS = "first_loss"  # ranks differ on purpose, so only the first loss equals one device's
    APPLIED_ONCE = "applied_once"  # each gradient reached the parameters exactly once, and the loss fell


class Group(StrEnum):
    """A set of ranks that call collectives together."""

    ALL = "all"
    NODE = "node"  # `ranks_per_node` consecutive ranks
    ACROSS_NODES = "across_nodes"  # one rank of each node
    LAYERS = "layers"  # the `tp_size` consecutive ranks that share the layers
    ACROSS_LAYERS = "across_layers"  # one rank of each of these groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model in bytes, and the number of ranks that share its parts."""

    whole: float  # all parameters
    tensor: float  # parameters that tensor parallel splits
    root: float  # FSDP's root unit: parameters outside of blocks
    ranks: int
    sharing: int  # ranks that share the layers
    node: int  # ranks that share the parameters with `hsdp`


# Bytes of parameters, gradients and optimizer states on the rank with the most.
ModelStates = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula for the model states of a rank. `text` is for users. If it assumes an even split, it is not `exact`.

    It is valid only if AdamW trains all parameters (`workloads.trainer.no_formula`).
    """

    states: Callable[[ModelShape], ModelStates]
    text: str
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyEntry(Entry):
    """The facts about a strategy that planning and reports need without importing its code."""

    axes: frozenset[str] = frozenset()  # its OPTIONAL axes
    layout: Layout = Layout.DATA
    rule: Rule = Rule.REFERENCE
    needs: frozenset[str] = frozenset()  # requirements of the model, such as "blocks"
    splits: str = ""  # the split between ranks, for users
    one_rank_only: bool = False
    one_process: bool = False  # a single process uses all devices
    own_steps: bool = False  # it does not use the ordinary step, and does not scale the loss
    local_forward: bool = False  # forward does not communicate
    ranks_differ: bool = False  # ranks have different work, in a fixed order
    ranked: bool = True  # it may be the fastest
    memory: Formula | None = None  # the formula for its model states, if known
    calls: Mapping[Group, frozenset[str]] | None = None  # the operations of each group of ranks, by NCCL's names
    color: str | None = None  # on all pages

    @property
    def takes_caps(self) -> bool:
        """Return whether `bucket_mib` may be a list of caps, as for all strategies that use DDP."""
        return self.axes >= _DDP


def _adamw(trained: float, gathered: float = 0) -> ModelStates:
    """Return the model states of a rank that trains some parameters and has others `gathered` after forward."""
    return trained + gathered, trained, 2 * trained


def _tensor_parallel(shape: ModelShape) -> float:
    """Return the bytes of a rank's parameters with tensor parallel: its part of the split ones, and all others."""
    return shape.whole - shape.tensor + shape.tensor / shape.sharing


# With AdamW, K bytes of parameters need 4K (Rajbhandari et al., "ZeRO", 2020, section 3). FSDP2's root stays gathered
# from forward to backward, and with `zero2` all units do.
WHOLE = Formula(lambda s: _adamw(s.whole), "4K")
ZERO1 = Formula(lambda s: (s.whole, s.whole, 2 * s.whole / s.ranks), "2K + 2K/n")
ZERO2 = Formula(lambda s: _adamw(s.whole / s.ranks, s.whole), "K + 4K/n")
FSDP = Formula(lambda s: _adamw(s.whole / s.ranks, s.root), "E + 4K/n")
HSDP = Formula(lambda s: _adamw(s.whole / s.node, s.root), "E + 4K/m")
# Shoeybi et al., "Megatron-LM", 2019.
TENSOR = Formula(lambda s: _adamw(_tensor_parallel(s)), "4(K-S) + 4S/n")
TENSOR_GROUPS = Formula(lambda s: _adamw(_tensor_parallel(s)), "4(K-S) + 4S/t")
TENSOR_FSDP = Formula(lambda s: _adamw(_tensor_parallel(s) / (s.ranks // s.sharing), s.root), "E + 4(K-S+S/t)t/n")
# Huang et al., "GPipe", 2019.
STAGE = Formula(lambda s: _adamw(s.whole / s.ranks), "4K/n, if stages are equal", exact=False)
# Li et al., "Scaling distributed machine learning with the parameter server", 2014. If it is asynchronous, rank 0 has
# the newest parameters, and a copy for its computation.
SERVING = Formula(lambda s: _adamw(s.whole), "rank 0: 4K, others 2K")
SERVING_ASYNC = Formula(lambda s: _adamw(s.whole, s.whole), "rank 0: 5K, others 2K")

_REDUCING = frozenset({"algorithm", "bucket_mib", "grad_accumulation", "no_sync"})
_DDP = _REDUCING | {"find_unused_parameters", "static_graph", "gradient_as_bucket_view"}
_TENSOR = frozenset({"algorithm", "sequence_parallel", "grad_accumulation"})
_ALONE = frozenset({"grad_accumulation"})
_PLAN = frozenset({"tensor_parallel"})

_SUMS = frozenset({"allreduce"})
_SHARDS = frozenset({"allgather", "reducescatter"})

# DeepSpeed keeps flat copies, so it has no formula. Most colors are from Okabe and Ito, and from Tol. Colors of related
# strategies are similar.
STRATEGIES: dict[str, StrategyEntry] = {
    "single": StrategyEntry(
        target="parabench.strategies.data_parallel:single",
        summary="one device: the reference",
        axes=_ALONE,
        splits="nothing",
        one_rank_only=True,
        memory=WHOLE,
        color="#999999",
    ),
    "dp": StrategyEntry(
        target="parabench.strategies.data_parallel:dp",
        summary="DataParallel: one process scatters the batch over its CUDA devices; no other process",
        axes=_ALONE,
        splits="batch",
        one_process=True,
        memory=WHOLE,
        color="#777777",
    ),
    "ddp": StrategyEntry(
        target="parabench.strategies.data_parallel:ddp",
        summary="DistributedDataParallel: one replica per rank, gradients all-reduced in buckets",
        axes=_DDP,
        splits="batch",
        local_forward=True,
        memory=WHOLE,
        calls={Group.ALL: _SUMS},
        color="#0072B2",
    ),
    "zero1": StrategyEntry(
        target="parabench.strategies.data_parallel:zero1",
        summary="ZeroRedundancyOptimizer over DDP: each rank keeps the optimizer state of its parameters",
        axes=_DDP,
        splits="batch, optimizer state",
        local_forward=True,
        memory=ZERO1,
        calls={Group.ALL: _SUMS | {"broadcast"}},
        color="#56B4E9",
    ),
    "zero2": StrategyEntry(
        target="parabench.strategies.fsdp:zero2",
        summary="FSDP2 that keeps gathered parameters from forward to backward: gradients and optimizer state sharded",
        axes=_REDUCING,
        splits="batch, gradients, optimizer state; parameters between steps",
        memory=ZERO2,
        calls={Group.ALL: _SHARDS},
        color="#E69F00",
    ),
    "fsdp": StrategyEntry(
        target="parabench.strategies.fsdp:fsdp",
        summary="FSDP2: parameters, gradients and optimizer state sharded; all-gather and reduce-scatter per unit",
        axes=_REDUCING,
        splits="batch, parameters, gradients, optimizer state",
        memory=FSDP,
        calls={Group.ALL: _SHARDS},
        color="#D55E00",
    ),
    "hsdp": StrategyEntry(
        target="parabench.strategies.fsdp:hsdp",
        summary="FSDP2 inside each node of ranks_per_node ranks, replicas across nodes",
        axes=_REDUCING | {"ranks_per_node"},
        splits="batch; inside a node parameters, gradients, optimizer state",
        memory=HSDP,
        calls={Group.NODE: _SHARDS, Group.ACROSS_NODES: _SUMS},
        color="#9467FF",
    ),
    "tp": StrategyEntry(
        target="parabench.strategies.tensor_parallel:tp",
        summary="tensor parallel: attention and MLP split column- then row-wise; activations all-reduced",
        axes=_TENSOR,
        layout=Layout.TENSOR,
        needs=_PLAN,
        splits="layers, with their gradients and optimizer state",
        memory=TENSOR,
        calls={Group.LAYERS: _SUMS},
        color="#009E73",
    ),
    "tp_ddp": StrategyEntry(
        target="parabench.strategies.tensor_parallel:tp_ddp",
        summary="tensor parallel inside groups of tp_size ranks, DistributedDataParallel between them",
        axes=_TENSOR | _DDP | {"tp_size"},
        layout=Layout.GRID,
        needs=_PLAN,
        splits="layers inside a group, batch between groups",
        memory=TENSOR_GROUPS,
        calls={Group.LAYERS: _SUMS, Group.ACROSS_LAYERS: _SUMS},
        color="#44AA99",
    ),
    "tp_fsdp": StrategyEntry(
        target="parabench.strategies.tensor_parallel:tp_fsdp",
        summary="tensor parallel inside groups of tp_size ranks, FSDP2 between them",
        axes=_TENSOR | _REDUCING | {"tp_size"},
        layout=Layout.GRID,
        needs=_PLAN,
        splits="layers inside a group; between groups batch, parameters, gradients, optimizer state",
        memory=TENSOR_FSDP,
        calls={Group.LAYERS: _SUMS, Group.ACROSS_LAYERS: _SHARDS},
        color="#66A61E",
    ),
    "pp": StrategyEntry(
        own_steps=True,
        ranks_differ=True,
        target="parabench.strategies.pipeline:pp",
        summary="pipeline of stages over micro-batches: GPipe, 1F1B or interleaved",
        axes=frozenset({"schedule", "microbatches"}),
        layout=Layout.PIPELINE,
        needs=frozenset({"blocks"}),
        splits="blocks, with their gradients and optimizer state",
        memory=STAGE,
        color="#AA4499",
    ),
    "layer_split": StrategyEntry(
        own_steps=True,
        ranks_differ=True,
        target="parabench.strategies.pipeline:layer_split",
        summary="the naive vertical split: one stage after the other, the whole batch at once",
        layout=Layout.PIPELINE,
        needs=frozenset({"blocks"}),
        splits="blocks, with their gradients and optimizer state",
        memory=STAGE,
        color="#CC79A7",
    ),
    "parameter_server": StrategyEntry(
        own_steps=True,
        ranks_differ=True,
        target="parabench.strategies.parameter_server:parameter_server",
        summary="synchronous: gradients to rank 0, which updates and sends the parameters back",
        axes=_ALONE,
        splits="batch; rank 0 alone has the optimizer state",
        local_forward=True,
        memory=SERVING,
        color="#8C6D31",
    ),
    "parameter_server_async": StrategyEntry(
        own_steps=True,
        target="parabench.strategies.parameter_server_async:parameter_server_async",
        summary="asynchronous: gradients are applied as they arrive, so they are stale; not equivalent to one device",
        axes=_ALONE,
        rule=Rule.APPLIED_ONCE,
        splits="batch; rank 0 alone has the optimizer state",
        local_forward=True,
        memory=SERVING_ASYNC,
        color="#CC6677",
    ),
    "local_only": StrategyEntry(
        own_steps=True,
        target="parabench.strategies.data_parallel:local_only",
        summary="no gradient exchange: the no-communication baseline; not ranked",
        axes=_ALONE,
        rule=Rule.FIRST_LOSS,
        splits="batch",
        ranked=False,
        local_forward=True,
        memory=WHOLE,
        color="#5F6CAF",
    ),
    **{
        f"deepspeed{stage}": StrategyEntry(
            own_steps=True,
            target="parabench.strategies.deepspeed:zero",
            summary=f"DeepSpeed's ZeRO stage {stage}: {what} split",
            axes=_ALONE,
            splits=f"batch, {what}",
            local_forward=stage < 3,
            color=("#88CCEE", "#DDCC77", "#EE7733")[stage - 1],
            package="deepspeed",
        )
        for stage, what in (
            (1, "optimizer state"),
            (2, "gradients and optimizer state"),
            (3, "parameters, gradients and optimizer state"),
        )
    },
}

# Axes that only some strategies have; a sweep over several strategies drops them for the others.
OPTIONAL = frozenset[str]().union(*(entry.axes for entry in STRATEGIES.values()))

# The assumption for custom strategies.
USER_STRATEGY = StrategyEntry(target="", summary="a user's own", axes=_DDP, splits="batch")


def entry_of(strategy: str) -> StrategyEntry:
    """Return the facts about a strategy. A custom strategy counts as data parallel, with DDP's axes."""
    return STRATEGIES.get(strategy, USER_STRATEGY)


def data_ranks(strategy: str, world_size: int, tp_size: int | None) -> int:
    """Return the number of equal parts of the global batch. A part is for one rank or one group of ranks."""
    layout = entry_of(strategy).layout
    if layout is Layout.DATA:
        return world_size
    return world_size // (tp_size or 1) if layout is Layout.GRID else 1
