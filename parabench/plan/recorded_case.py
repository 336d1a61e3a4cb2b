"""The case of a training that parabench did not configure: what is known of it, and nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from parabench.plan.case import DEFAULTS, ranks_in_words, slug
from parabench.plan.fields import Checked, Field

UNKNOWN = "unknown"
# More characters no table has room for.
LONGEST_NAME = 100

_LINE = Field(pattern=re.compile(r"[^\x00-\x1f\x7f]{1,100}"), expected="a line of 1 to 100 characters")
# Numbers that a table computes with, where unknown is NaN.
_NUMBERS = ("global_batch", "seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCase(Checked):
    """A training as its recordings tell of it: `world_size` ranks, on at least `nodes` machines. `device` and `backend`
    are `unknown` where nothing tells them; everything else that a `Case` has is unknown. Raises UsageError."""

    kind: ClassVar[str] = "recorded"
    # What a launch's row says where a training of parabench's own has more.
    strategy: ClassVar[str] = "recorded"
    algorithm: ClassVar[str] = "native"
    model: ClassVar[str] = ""
    bucket_cap: ClassVar[float | None] = None
    ranks_per_node: ClassVar[int | None] = None

    name: Annotated[str, _LINE]
    world_size: Annotated[int, Field(least=1, most=1 << 20)] = 1
    nodes: Annotated[int, Field(least=1, most=1 << 20)] = 1
    device: Annotated[str, Field(choices=(UNKNOWN, "cpu", "cuda"))] = UNKNOWN
    backend: Annotated[str, _LINE] = UNKNOWN

    @property
    def id(self) -> str:
        return f"{self.kind}-{slug(self.name)[:24] or 'training'}-w{self.world_size}-{self.digest}"

    @property
    def label(self) -> str:
        return f"{self.name}, {ranks_in_words(self.world_size, self.nodes)}"

    def to_dict(self) -> dict[str, Any]:
        """Its fields, and its `kind`, by which a reader of a store tells it from a `Case`."""
        return {"kind": self.kind} | Checked.to_dict(self)

    def cells(self) -> dict[str, Any]:
        """A row with the columns of `Case`, as tables of trainings have them: unknown is None, of numbers that are
        computed with NaN."""
        known = {name: getattr(self, name) for name in DEFAULTS if hasattr(self, name)}
        return dict.fromkeys(DEFAULTS) | dict.fromkeys(_NUMBERS, math.nan) | known


def line(text: object) -> str:
    """A text of somebody else's as a field or a table holds it: one line of LONGEST_NAME characters at most, with marks
    for what no file can hold; `unknown` where nothing is left."""
    told = "".join(each if each.isprintable() else " " for each in str(text).encode(errors="replace").decode())
    return " ".join(told.split())[:LONGEST_NAME] or UNKNOWN
