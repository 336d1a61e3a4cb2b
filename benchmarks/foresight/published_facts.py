"""Published step rates of distributed training at several numbers of GPUs, with their sources, and what they ran on.

A table has only rows that differ in nothing but the number of GPUs: the same model, samples a GPU, precision, sharding
and checkpointing, and no accumulation of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from parabench.analysis.prediction.program import DEFAULT_CAPS

GB = 1e9
NVIDIA = "https://github.com/NVIDIA"
RING_LATENCIES = f"{NVIDIA}/nccl src/graph/tuning.cc, commit b647562: hwLat of Ring, Simple: NVLINK 3.4 us, NET 14.0 us"
LINK_RATES = f"{NVIDIA}/nccl src/graph/topo.h: SM70_NVLINK_BW and SM80_NVLINK_BW 20.0, SM90_NVLINK_BW 20.6, NET_BW 12.0"


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes of `per_node` GPUs: what a GPU sends in its node, and a node to others, in bytes a second, each with the
    latency of a message in seconds. NCCL makes a ring for each network card, so a node's rate is that of all of them.
    """

    name: str
    within: float
    between: float
    sources: tuple[str, ...]
    per_node: int = 8
    within_latency_s: float = 3.4e-6
    between_latency_s: float = 14.0e-6


H100 = Machine(
    "8 H100, NVLink 4, 8 x 400 Gbit/s", 370 * GB, 8 * 47 * GB,
    (f"{NVIDIA}/nccl-tests/issues/212: a ring gets 370 GB/s of NVLink",
     f"{NVIDIA}/nccl-tests/issues/290: 46-48 GB/s of each 400 Gbit/s card"),
)  # fmt: skip
A100 = Machine(
    "8 A100, NVLink 3, 1600 Gbit/s RoCE", 12 * 20 * GB, 192 * GB,
    (f"12 NVLinks of 20 GB/s: {LINK_RATES}",
     f"{NVIDIA}/nccl/issues/812: 192 GB/s among DGX A100 with 8 x 200 Gbit/s"),
)  # fmt: skip
V100 = Machine(
    "8 V100, NVLink 2, 4 x 100 Gbit/s InfiniBand", 6 * 20 * GB, 4 * 12 * GB,
    (f"6 NVLinks of 20 GB/s and 12 GB/s of each card: {LINK_RATES}",),
)  # fmt: skip
V100_ONE_CARD = replace(V100, name="8 V100, NVLink 2, 100 Gbit/s InfiniBand", between=12 * GB)


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a model that is gathered and reduced as one: its parameters, and its share of all that is computed."""

    parameters: int
    work: float


@dataclass(frozen=True, slots=True)
class Model:
    """A model's units in the order of forward, and `root`: what belongs to none of them, used at both ends. The head,
    which is part of the root, computes `head` as a unit's `work` is counted."""

    name: str
    units: tuple[Unit, ...]
    root: int
    head: float

    @property
    def parameters(self) -> int:
        return self.root + sum(unit.parameters for unit in self.units)


def transformer(name: str, parameters: int, layers: int, layer: int, head: int) -> Model:
    """Layers all alike; what a part computes goes with the parameters that it multiplies by."""
    return Model(name, (Unit(layer, layer),) * layers, parameters - layers * layer, head)


def mpt(size: str, parameters: int, layers: int, width: int) -> Model:
    """MPT, of which a layer has 12 d^2 + 13 d parameters; the head is the embedding of 50368 words."""
    return transformer(f"MPT-{size}", parameters, layers, 12 * width**2 + 13 * width, 50368 * width)


def _resnet50() -> Model:
    """ResNet-50 by blocks: parameters and multiplications (10^9) of each stage of torchvision's, spread evenly."""
    stages = ((1, 9_536, 0.118), (3, 215_808, 0.68), (4, 1_219_584, 1.04), (6, 7_098_368, 1.47), (3, 14_964_736, 0.81))
    blocks = (Unit(size // count, work / count) for count, size, work in stages for _ in range(count))
    return Model("ResNet-50", (*blocks, Unit(2_049_000, 0.002)), 0, 0.0)


# d = 4096, 8 of 32 heads for keys and values, 14336 in between; two matrices of 128256 words.
LLAMA_8B = transformer("Llama 3.1 8B", 8_030_261_248, 32, 218_112_000, 128256 * 4096)
# bert-base-uncased: 12 layers of d = 768, 30522 words. Where it is fine-tuned the head computes next to nothing.
BERT = transformer("BERT base", 109_482_240, 12, 7_087_872, 0)
# For pretraining it has a head for words (d^2 + 3 d, and one of 30528 biases) and one for sentences; all 128 words of a
# sentence go through both.
BERT_PRETRAINING = transformer("BERT base, pretraining", 110_111_044, 12, 7_087_872, 768 * 768 + 768 * 30528)
RESNET_50 = _resnet50()


class Strategy(StrEnum):
    """DDP; FSDP that gathers parameters for forward and again for backward; and FSDP that keeps them until then."""

    DDP = "DDP"
    FULL_SHARD = "FSDP"
    SHARD_GRAD_OP = "FSDP, kept after forward"


@dataclass(frozen=True, slots=True)
class Row:
    """So many GPUs do `rate` samples or tokens a second, each of them."""

    gpus: int
    rate: float


@dataclass(frozen=True, slots=True)
class Table:
    """Published rows. `per_gpu` samples or tokens are a GPU's share of a step. Parameters are gathered in `gathered`
    bytes each, gradients reduced in `reduced`, by DDP in buckets of `caps`. Predictions come from row `base`, of whole
    nodes. With `recomputed`, backward begins with another forward."""

    name: str
    source: str
    machine: Machine
    model: Model
    strategy: Strategy
    per_gpu: float
    rows: tuple[Row, ...]
    gathered: float = 2
    reduced: float = 2
    caps: tuple[int, ...] = DEFAULT_CAPS
    recomputed: bool = False
    base: int = 0
    assumed: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[Row, ...]:
        """The rows that a line of the rate goes through: up to the base, or else the two smallest of more than two."""
        before = self.rows[: self.base + 1]
        return before if len(before) > 1 or len(self.rows) < 3 else self.rows[:2]


def rows(**rates: float) -> tuple[Row, ...]:
    """Rows such as gpus8=5762."""
    return tuple(Row(int(name.removeprefix("gpus")), rate) for name, rate in rates.items())
