"""Define `CollectiveCase`: one collective operation with one algorithm, at a range of message sizes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta, structs

from parabench.collectives.nccl import error_bound, is_nccls, most_that_shows
from parabench.errors import UsageError, unknown
from parabench.plan.case import BACKENDS, DEVICES, NAMED, UNKNOWN, BaseCase, Count, Name, Threads, ranks_in_words, slug
from parabench.records import Field
from parabench.store.record import MIB

OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
REDUCING = ("all_reduce", "reduce_scatter")
REDOPS = ("sum", "avg", "max", "min")
# Logs of nccl-tests have more operations, and may not name the operation.
LOGGED_OPS = (*OPS, "reduce", "gather", "scatter", "all_to_all", "sendrecv", UNKNOWN)

# c10d's all_reduce and broadcast have one buffer. The other operations have an input and an output, and the smaller one
# may be a part of the larger one.
IN_PLACE_ONLY = ("all_reduce", "broadcast")
# For these operations, nccl-tests counts the elements of the whole buffer; for others, the elements of one rank's part.
_WHOLE_BUFFER = (*IN_PLACE_ONLY, "reduce", "sendrecv")
WHY_IN_PLACE_ONLY = "torch.distributed has this operation in place only"

ROOT = 0


class ElementType(NamedTuple):
    """An element type: its name in nccl-tests, its bytes, and the range of exact whole numbers, from 0 to `exact`."""

    name: str
    size: int
    exact: int


TYPES: dict[str, ElementType] = {
    "float32": ElementType("float", 4, 2**24),
    "float64": ElementType("double", 8, 2**53),
    "bfloat16": ElementType("bfloat16", 2, 2**8),
    "float16": ElementType("half", 2, 2**11),
}

# The bytes of each type, also of types that only logs have.
WIDTHS = {name: each.size for name, each in TYPES.items()} | {
    f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 32, 64)
}  # fmt: skip
WIDTHS |= {"float8_e4m3": 1, "float8_e5m2": 1}

# nccl-tests cuts the part of a rank to a multiple of 16 bytes (all_gather.cu, reduce_scatter.cu).
ALIGNMENT_BYTES = 16

# The largest size of a buffer. No device has more memory, and no integer overflows.
MOST_BYTES = 1 << 40

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": MIB, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Return the bytes that a text such as '64KiB', '64K', '1G' or '4096' means, in powers of 1024 as in nccl-tests.

    Raises UsageError.
    """
    match = _SIZE.fullmatch(text.strip())
    count = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
    if not 1 <= count <= MOST_BYTES or count != int(count):
        raise UsageError(
            f"size {text!r} is not a number of bytes up to {size_text(MOST_BYTES)}; write it as 4096, 64KiB or 1MiB"
        )
    return int(count)


def size_text(count: int) -> str:
    """Return a number of bytes as text without rounding: '64 KiB', '1 MiB', '100 B'."""
    unit = next((unit for unit in reversed(_UNITS) if count and count % _UNITS[unit] == 0), "")
    return f"{count // _UNITS[unit]} {unit}{unit and 'i'}B"


Size = Annotated[int, Meta(ge=1, le=MOST_BYTES)]


class CollectiveCase(BaseCase, frozen=True, kw_only=True):
    """One operation by one algorithm among `world_size` ranks, at sizes from `min_bytes` to `max_bytes`.

    Sizes are bytes of the whole buffer. `source` is the nccl-tests log that the case is from, if any. Raises UsageError
    for invalid values.
    """

    kind: ClassVar[str] = "collectives"
    # The values in columns of a launch that only apply to training runs.
    strategy: ClassVar[str] = "collectives"
    model: ClassVar[str] = ""
    bucket_cap: ClassVar[float | None] = None

    op: Annotated[
        str, Field(choices=LOGGED_OPS, option="--op", metavar="OP1,OP2", help=f"{', '.join(OPS)}. [default: all four]")
    ]
    algorithm: Annotated[
        Name,
        structs.replace(
            NAMED,
            option="--algorithm",
            metavar="A1,A2",
            help="Names that `parabench list` shows. [default: native and all of parabench's]",
        ),
    ] = "native"
    world_size: Annotated[
        Annotated[int, Meta(ge=2, le=1 << 16)],
        Field(
            option="--world-size",
            text=True,
            metavar="N1,N2",
            help="Ranks. [default: all devices on CUDA, 2 on the CPU]",
        ),
    ] = 2
    nodes: Annotated[Count, Field(divides="world_size")] = 1
    ranks_per_node: Annotated[
        Count | None,
        Field(divides="world_size", option="--ranks-per-node", metavar="G", help="Ranks per node, for two_level."),
    ] = None
    dtype: Annotated[
        str,
        Field(
            choices=tuple(WIDTHS), option="--dtype", help="float32, float64, bfloat16 or float16. [default: float32]"
        ),
    ] = "float32"
    redop: Annotated[str, Field(option="--redop", help="sum, avg, max or min. [default: sum]")] = "sum"
    min_bytes: Annotated[
        Size,
        Field(option="--min", text=True, metavar="SIZE", help="The smallest size: 4096, 64KiB, 1MiB. [default: 64KiB]"),
    ] = 64 * 1024
    max_bytes: Annotated[
        Size,
        Field(
            option="--max",
            text=True,
            metavar="SIZE",
            help="The largest size. [default: 1GiB over NCCL, 64MiB over gloo]",
        ),
    ] = 64 * MIB
    factor: Annotated[
        Annotated[int, Meta(ge=2, le=1 << 20)] | None,
        Field(option="--factor", help="Factor between sizes. [default: 4]"),
    ] = 4
    device: Annotated[
        str, Field(choices=DEVICES, option="--device", help="cpu or cuda. [default: cuda if available]")
    ] = "auto"
    backend: Annotated[
        str, Field(choices=BACKENDS, option="--backend", help="gloo or nccl. [default: nccl on CUDA, else gloo]")
    ] = "auto"
    threads: Annotated[Threads, Field(option="--threads", help="CPU threads per rank. [default: 1]")] = 1
    # Cases from a log have no `factor`, and may have operations that parabench does not measure.
    source: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source:
            return
        if self.op not in OPS:
            raise unknown("op", self.op, OPS)
        if self.dtype not in TYPES:
            raise unknown("dtype", self.dtype, TYPES)
        redops = REDOPS if self.op in REDUCING else ("none",)
        if self.redop not in redops:
            raise unknown(f"{self.op}: redop", self.redop, redops)
        if self.min_bytes > self.max_bytes:
            raise UsageError(f"min is {size_text(self.min_bytes)}, above max, {size_text(self.max_bytes)}")
        if 0 in map(self.count, self._ladder()):
            raise UsageError(
                f"min is {size_text(self.min_bytes)}, less than {self.op} among {self.world_size} ranks can split; "
                f"use {size_text(self.world_size * ALIGNMENT_BYTES)} or more"
            )
        if self.largest_value() < 1:
            raise UsageError(
                f"dtype {self.dtype} holds too few whole numbers to check {self.redop} of {self.world_size} ranks "
                "exactly; use float32"
            )

    @property
    def id(self) -> str:
        """Return a stable id such as 'all_reduce-ring-w2-1a2b3c4d', which ends with the digest of all fields."""
        return "-".join([self.op, slug(self.algorithm), f"w{self.world_size}", self.digest])

    @property
    def label(self) -> str:
        """Return the name for people, such as 'all_reduce ring, 2 ranks'."""
        nodes = "" if self.ranks_per_node is None else f" ({self.ranks_per_node} a node)"
        return f"{self.op} {self.contender}, {ranks_in_words(self.world_size, self.nodes)}{nodes}"

    @property
    def contender(self) -> str:
        """Return the name among cases of the same operation and ranks: the algorithm, and the log if there is one."""
        return f"{self.algorithm} {self.source}".removeprefix("native ") if self.source else self.algorithm

    def _ladder(self) -> Iterator[int]:
        size = self.min_bytes
        while self.factor is not None and size <= self.max_bytes:
            yield size
            size *= self.factor

    def count(self, size: int) -> int:
        """Return the number of elements for a buffer of about `size` bytes, as nccl-tests counts them.

        For operations that split the buffer, such as all_gather, these are the elements of one rank's part.
        """
        width = WIDTHS[self.dtype]
        if self.op in _WHOLE_BUFFER:
            return size // width
        aligned = 1 if self.source else ALIGNMENT_BYTES // width
        return size // width // self.world_size // aligned * aligned

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the measured sizes of the whole buffer in bytes, rounded as in nccl-tests, without duplicates."""
        unit = WIDTHS[self.dtype] * (1 if self.op in _WHOLE_BUFFER else self.world_size)
        return tuple(dict.fromkeys(self.count(size) * unit for size in self._ladder()))

    @property
    def forms(self) -> tuple[bool, ...]:
        """Return the forms of the operation in torch: False is out of place, True is in place."""
        return (True,) if self.op in IN_PLACE_ONLY else (False, True)

    def turns(self) -> Iterator[tuple[int, bool]]:
        """Yield the (bytes, in place) of every measured size and form, in order."""
        return itertools.product(self.sizes, self.forms)

    def largest_value(self) -> int:
        """Return the largest whole number of the test data, so that results are exact; 0 if there is none.

        For averages, the data are these numbers times the world size. NCCL rounds averages, with an error below 1/2.
        """
        exact = TYPES[self.dtype].exact
        ranks = self.world_size**2 if self.redop == "avg" else self.world_size
        largest = min(256, exact // ranks if self.op in REDUCING else exact)
        return most_that_shows(self.world_size, self._digits, largest) if self._premultiplies else largest

    def relative_error(self) -> float:
        """Return the largest relative error of a correct result, which is 0 except for averages of NCCL."""
        return error_bound(self.world_size, self._digits, self.largest_value()) if self._premultiplies else 0.0

    @property
    def _premultiplies(self) -> bool:
        """Return whether NCCL averages by multiplying each element first, which rounds.

        parabench's algorithms over NCCL divide the sum instead.
        """
        own = self.algorithm != "native" and not is_nccls(self.algorithm)
        return self.redop == "avg" and self.backend == "nccl" and not own

    @property
    def _digits(self) -> int:
        """Return the bits of the element type's significand, with the implied bit."""
        return TYPES[self.dtype].exact.bit_length() - 1
