"""Formulas for the model states of a rank with each strategy. Free of torch.

With AdamW, K bytes of parameters need 4K (Rajbhandari et al., 2020, section 3). The formulas are valid only if AdamW
trains all parameters (`workloads.trainer.no_formula`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model in bytes, and the numbers of its ranks."""

    whole: float  # all parameters
    tensor: float  # parameters that tensor parallel splits
    root: float  # FSDP's root unit: parameters outside of blocks
    ranks: int
    sharing: int  # ranks that share the layers
    node: int  # ranks that share the parameters with `hsdp`


@dataclass(frozen=True, slots=True)
class State:
    """Bytes on the rank with the most."""

    parameters: float
    gradients: float
    optimizer: float


@dataclass(frozen=True, slots=True)
class Formula:
    """The formula of a strategy. `text` is for users. If it assumes an even split, it is not `exact`."""

    state: Callable[[Shape], State]
    text: str
    exact: bool = True


def _adamw(trained: float, gathered: float = 0) -> State:
    """Return the state for parameters that a rank trains, plus parameters that are `gathered` at the end of forward."""
    return State(trained + gathered, trained, 2 * trained)


def _own_layers(shape: Shape) -> float:
    return shape.whole - shape.tensor + shape.tensor / shape.sharing


# Rajbhandari et al., "ZeRO", 2020. FSDP2's root stays gathered from forward to backward, and with `zero2` all units do.
WHOLE = Formula(lambda s: _adamw(s.whole), "4K")
ZERO1 = Formula(lambda s: State(s.whole, s.whole, 2 * s.whole / s.ranks), "2K + 2K/n")
ZERO2 = Formula(lambda s: _adamw(s.whole / s.ranks, s.whole), "K + 4K/n")
FSDP = Formula(lambda s: _adamw(s.whole / s.ranks, s.root), "E + 4K/n")
HSDP = Formula(lambda s: _adamw(s.whole / s.node, s.root), "E + 4K/m")
# Shoeybi et al., "Megatron-LM", 2019.
TENSOR = Formula(lambda s: _adamw(_own_layers(s)), "4(K-S) + 4S/n")
TENSOR_GROUPS = Formula(lambda s: _adamw(_own_layers(s)), "4(K-S) + 4S/t")
TENSOR_FSDP = Formula(lambda s: _adamw(_own_layers(s) / (s.ranks // s.sharing), s.root), "E + 4(K-S+S/t)t/n")
# Huang et al., "GPipe", 2019.
STAGE = Formula(lambda s: _adamw(s.whole / s.ranks), "4K/n, if stages are equal", exact=False)
# Li et al., "Scaling distributed machine learning with the parameter server", 2014. If it is asynchronous, rank 0 has
# the newest parameters, and a copy for its computation.
SERVING = Formula(lambda s: _adamw(s.whole), "rank 0: 4K, others 2K")
SERVING_ASYNC = Formula(lambda s: _adamw(s.whole, s.whole), "rank 0: 5K, others 2K")
