"""What a rank of each strategy holds of the training state by formula. Free of torch.

The formulas count bytes of parameters and divide them. AdamW keeps two moments of each parameter, so that a whole state
is 4K for K bytes of parameters (Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter
models", 2020, section 3; there with mixed precision, here all in the parameters' own dtype). They hold only if AdamW
trains all parameters (`workloads.trainer.no_formula`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of what size a model is, and how its ranks are arranged; all in bytes and ranks.

    `whole` are all parameters, `tensor` those of them that tensor parallel splits. `root` is FSDP's root unit, what
    belongs to no block. `sharing` is how many ranks share the layers, `node` how many share a shard of `hsdp`.
    """

    whole: float
    tensor: float
    root: float
    ranks: int
    sharing: int
    node: int


@dataclass(frozen=True, slots=True)
class State:
    """Bytes on the rank that holds most."""

    parameters: float
    gradients: float
    optimizer: float


@dataclass(frozen=True, slots=True)
class Formula:
    """How much a strategy's rank holds. `source` says where it comes from; `text` is it, with K, n and so on.

    `exact` is False where the formula can only be what an even split would give.
    """

    state: Callable[[Shape], State]
    text: str
    source: str
    exact: bool = True


def _adamw(own: float) -> State:
    """Of parameters that a rank trains by itself."""
    return State(own, own, 2 * own)


def _sharded(whole: float, gathered: float, ranks: int) -> State:
    """Shards of everything, and what is `gathered` at the end of forward beside its shard."""
    return State(whole / ranks + gathered, whole / ranks, 2 * whole / ranks)


def _own_layers(shape: Shape) -> float:
    return shape.whole - shape.tensor + shape.tensor / shape.sharing


_ZERO = "Rajbhandari et al. 2020"
_FSDP2 = "PyTorch's fully_shard: the root stays gathered from forward to backward"
_MEGATRON = "Shoeybi et al., Megatron-LM, 2019"
_SERVER = "Li et al., Scaling distributed machine learning with the parameter server, 2014"
_STAGES = "Huang et al., GPipe, 2019"

WHOLE = Formula(lambda s: _adamw(s.whole), "4K", _ZERO)
SERVING = Formula(lambda s: _adamw(s.whole), "rank 0: 4K, others 2K", _SERVER)
STAGE = Formula(lambda s: _adamw(s.whole / s.ranks), "4K/n, if stages are equal", _STAGES, exact=False)
ZERO1 = Formula(lambda s: State(s.whole, s.whole, 2 * s.whole / s.ranks), "2K + 2K/n", _ZERO)
ZERO2 = Formula(
    lambda s: _sharded(s.whole, s.whole, s.ranks),
    "K + 4K/n",
    f"{_ZERO}; the gathered K beside its shard as FSDP2 keeps it",
)
FSDP = Formula(lambda s: _sharded(s.whole, s.root, s.ranks), "E + 4K/n", f"{_ZERO}; {_FSDP2}")
HSDP = Formula(lambda s: _sharded(s.whole, s.root, s.node), "E + 4K/m", f"{_ZERO}; {_FSDP2}")
TENSOR = Formula(lambda s: _adamw(_own_layers(s)), "4(K-S) + 4S/n", _MEGATRON)
TENSOR_GROUPS = Formula(lambda s: _adamw(_own_layers(s)), "4(K-S) + 4S/t", _MEGATRON)
TENSOR_FSDP = Formula(
    lambda s: _sharded(_own_layers(s), s.root, s.ranks // s.sharing),
    "E + 4(K-S+S/t)t/n",
    f"{_MEGATRON}; {_ZERO}; {_FSDP2}",
)
# The newest parameters are beside those that rank 0 computes with, as a worker too.
SERVING_ASYNC = Formula(lambda s: State(2 * s.whole, s.whole, 2 * s.whole), "rank 0: 5K, others 2K", _SERVER)
