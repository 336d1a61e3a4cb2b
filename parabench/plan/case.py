"""A case: one configuration to measure, with an id that stays the same everywhere."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Annotated, Any, ClassVar

from msgspec import Meta, structs

from parabench.machine import accelerator
from parabench.models import EXACT, IEEE, OF_THE_MODEL, PRECISIONS, SAME_SPLIT, VERIFICATIONS, Precision
from parabench.plan.fields import list_text
from parabench.records import Field, Record, declared
from parabench.strategies import data_ranks, entry_of

DEVICES = ("auto", "cpu", accelerator.TYPE)
BACKENDS = ("auto", "gloo", accelerator.BACKEND)
SCHEDULES = ("gpipe", "1f1b", "interleaved")
SPLITS = ("batch", "sample", "dimension")

# No CPU has more cores than this, and a pool of more threads cannot be made.
MOST_THREADS = 1024
MOST_WORKERS = 256

# Ids and labels have every cap of a list with at most this many.
MOST_CAPS = 8

# Roles of fields. CORE: the strategy and its ranks. TRAINING: cases with equal values train the same, so the reference
# has the field. DERIVED: the reference has a value that follows from it. MEANS: every strategy has the field, which
# changes the execution of a step but not its result. Other fields are in `axes` of the strategies that have them.
CORE, TRAINING, DERIVED, MEANS = "core", "training", "derived", "means"

# A strategy, algorithm or model is the name of a built-in one, or a user's own "package.module:name".
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z_][A-Za-z0-9_]*)?|two_level\([a-z_]+,[a-z_]+\)")
Name = Annotated[str, Meta(pattern=f"^(?:{NAME.pattern})$(?!\n)")]
NAMED = Field(expected="a name that `parabench list` shows, or package.module:name")
Count = Annotated[int, Meta(ge=1)]
Threads = Annotated[int, Meta(ge=1, le=MOST_THREADS)]
Mebibytes = Annotated[float, Meta(gt=0, le=1 << 20)]


class BaseCase(Record, frozen=True):
    """The part of every kind of case: its fields as cells of a table, and their digest."""

    def cells(self) -> dict[str, Any]:
        """Return the fields for a table, with lists as texts."""
        fields = structs.asdict(self)
        return {name: list_text(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @property
    def digest(self) -> str:
        """A digest of the fields that differ from their default: a new field with a default changes no digest."""
        fields = declared(type(self)).items()
        differing = {name: value for name, each in fields if (value := getattr(self, name)) != each.default}
        return hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:8]


class Case(BaseCase, frozen=True, kw_only=True):
    """One configuration to measure. docs/reference/axes.md describes the fields.

    Raises UsageError for a value that no machine could run.
    """

    kind: ClassVar[str] = "training"

    strategy: Annotated[Name, structs.replace(NAMED, role=CORE)] = "ddp"
    algorithm: Annotated[Name, NAMED] = "native"
    bucket_mib: Annotated[
        Mebibytes | Annotated[tuple[Mebibytes, ...], Meta(min_length=1)] | None, Field(unset="default")
    ] = None
    world_size: Annotated[Count, Field(role=CORE)] = 1
    nodes: Annotated[Count, Field(divides="world_size", role=CORE)] = 1
    ranks_per_node: Annotated[Count | None, Field(divides="world_size", unset="auto")] = None
    model: Annotated[Name, structs.replace(NAMED, role=TRAINING)] = "gpt-nano"
    data: Annotated[str, Field(path=True, role=TRAINING)] = "text"
    # The samples of a step over all ranks, so that every strategy and world size does the same work.
    global_batch: Annotated[Count, Field(role=TRAINING)] = 8
    seq_len: Annotated[Count, Field(role=TRAINING)] = 64
    precision: Annotated[str, Field(choices=tuple(PRECISIONS), role=TRAINING)] = IEEE
    device: Annotated[str, Field(choices=DEVICES, role=TRAINING)] = "auto"
    backend: Annotated[str, Field(choices=BACKENDS, role=TRAINING)] = "auto"
    # Per rank, so that "one device" is the same at every world size. torchrun also sets 1.
    threads: Annotated[Threads, Field(role=TRAINING)] = 1
    seed: Annotated[int, Meta(ge=0, le=(1 << 32) - 1), Field(role=TRAINING)] = 0
    grad_accumulation: Count = 1
    no_sync: bool = True
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    tp_size: Annotated[Count | None, Field(divides="world_size", unset="auto")] = None
    sequence_parallel: bool = False
    schedule: Annotated[str, Field(choices=SCHEDULES)] = "1f1b"
    microbatches: Annotated[Count | None, Field(unset="auto")] = None
    activation_checkpointing: Annotated[bool, Field(role=MEANS)] = False
    compile: Annotated[bool, Field(role=MEANS)] = False
    fused: Annotated[bool, Field(role=MEANS)] = True
    # 0: the rank itself loads.
    workers: Annotated[int, Meta(ge=0, le=MOST_WORKERS), Field(role=MEANS)] = 0
    pin_memory: Annotated[bool, Field(role=MEANS)] = False
    split: Annotated[str, Field(choices=SPLITS, role=DERIVED)] = "batch"
    vocabulary: Annotated[str, Field(path=True, unset="bytes", role=TRAINING)] = ""
    # Plans set `auto` unless the user chooses a level, and `resolve` replaces it with the model's level.
    verification: Annotated[str, Field(choices=(OF_THE_MODEL, *VERIFICATIONS), role=TRAINING)] = EXACT

    @property
    def id(self) -> str:
        """Readable and stable: the fields that people compare, then the digest of all that differ from the default."""
        parts = [slug(self.strategy), slug(self.algorithm), f"w{self.world_size}"]
        if self.bucket_mib is not None:
            caps = _caps(self.bucket_mib).replace("e+", "e").replace("+", "_").replace(" ", "_")
            parts.append(f"{caps}mib")
        return "-".join([*parts, self.digest])

    @property
    def label(self) -> str:
        """The name for people: 'ddp ring 4 MiB, 2 ranks', with every option that is not at its default."""
        own = entry_of(self.strategy).axes
        words = [self.strategy, *([self.algorithm] if "algorithm" in own else [])]
        if self.bucket_mib is not None:
            words.append(f"{_caps(self.bucket_mib)} MiB")
        for name in LABELED:
            value = getattr(self, name)
            if name == "schedule" and name in own:
                words.append(value)
            elif value != DEFAULTS[name] and (name != "ranks_per_node" or name in own):  # else two_level implies it
                words.append(f"{name} {value}" if type(value) is not bool else name if value else f"{name} off")
        return f"{' '.join(words)}, {ranks_in_words(self.world_size, self.nodes)}"

    @property
    def bucket_cap(self) -> float | None:
        """The cap of all buckets, or of FSDP's units, in MiB. None if there is no cap, or a list of caps."""
        return None if isinstance(self.bucket_mib, tuple) else self.bucket_mib

    @property
    def bucket_caps(self) -> tuple[float, ...]:
        """The list of caps in MiB; empty where there is none."""
        return self.bucket_mib if isinstance(self.bucket_mib, tuple) else ()

    @property
    def arithmetic(self) -> Precision:
        """The arithmetic that `precision` names."""
        return PRECISIONS[self.precision]

    @property
    def data_ranks(self) -> int:
        """Into how many ranks' parts the global batch is split."""
        return data_ranks(self.strategy, self.world_size, self.tp_size)

    @property
    def batch_parts(self) -> int:
        """Into how many equal parts the global batch is computed, over ranks and one after the other."""
        return self.data_ranks * self.grad_accumulation * (self.microbatches or 1)

    def reference(self) -> Case:
        """Return the same training run on one device, for the verification of this case's losses."""
        # At level `same_split`, the device takes the parts of each batch in turn. The parts of several ranks start from
        # equal buffers: `grad_accumulation` is the number of these ranks, `microbatches` the number of parts of each.
        training: dict[str, Any] = {name: getattr(self, name) for name in fields_of(TRAINING)}
        training["split"] = "sample" if self.split == "sample" else "batch"
        if self.verification == SAME_SPLIT:
            ranks, parts = self.data_ranks, self.microbatches
            if ranks > 1:
                parts = self.batch_parts // ranks
            training |= {"grad_accumulation": ranks if ranks > 1 else self.grad_accumulation, "microbatches": parts}
        return Case(strategy="single", **training)


DEFAULTS: dict[str, Any] = {name: each.default for name, each in declared(Case).items()}


def fields_of(role: str) -> tuple[str, ...]:
    """The fields of a case that have this role."""
    return tuple(name for name, each in declared(Case).items() if each.field.role == role)


# Options that a label names if they are set; it begins and ends with the others. A weaker verification is always named.
LABELED = tuple(
    name
    for name in DEFAULTS
    if name == "verification" or name not in (*fields_of(CORE), *fields_of(TRAINING), "algorithm", "bucket_mib")
)


def ranks_in_words(world_size: int, nodes: int) -> str:
    """'4 ranks', '4 ranks on 2 nodes'."""
    return f"{world_size} rank{'s' if world_size > 1 else ''}" + (f" on {nodes} nodes" if nodes > 1 else "")


def _caps(bucket_mib: float | tuple[float, ...]) -> str:
    """Return '4', '1+4+25', '9caps 1 to 25'; a list of one is '4+'."""
    if not isinstance(bucket_mib, tuple):
        return f"{bucket_mib:g}"
    caps = [f"{cap:g}" for cap in bucket_mib]
    if len(caps) > MOST_CAPS:
        return f"{len(caps)}caps {caps[0]} to {caps[-1]}"
    return "+".join(caps) + "+" * (len(caps) == 1)


def slug(name: str) -> str:
    """Return a name for file names and shells. A custom name loses its module."""
    own = name if name.startswith("nccl:") else name.rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._]+", "-", own).strip("-")


# -- training runs that parabench did not configure -------------------------------------------------------------------

UNKNOWN = "unknown"
# More characters no table has room for.
LONGEST_NAME = 100

OneLine = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,100}$(?!\n)")]
Ranks = Annotated[int, Meta(ge=1, le=1 << 20)]
_A_LINE = Field(expected="a line of 1 to 100 characters")
# Numbers that a table computes with, where unknown is NaN.
_COMPUTED_WITH = ("global_batch", "seq_len")


class RecordedCase(BaseCase, frozen=True, kw_only=True, tag_field="kind", tag="recorded"):
    """A training run as its recordings describe it: `world_size` ranks, on at least `nodes` machines.

    `device` and `backend` are `unknown` if the recordings do not name them. All other fields of a `Case` are unknown.
    """

    kind: ClassVar[str] = "recorded"
    # The values of columns that only parabench's own training runs fill.
    strategy: ClassVar[str] = "recorded"
    algorithm: ClassVar[str] = "native"
    model: ClassVar[str] = ""
    bucket_cap: ClassVar[float | None] = None
    ranks_per_node: ClassVar[int | None] = None

    name: Annotated[OneLine, _A_LINE]
    world_size: Ranks = 1
    nodes: Ranks = 1
    device: Annotated[str, Field(choices=(UNKNOWN, "cpu", "cuda"))] = UNKNOWN
    backend: Annotated[OneLine, _A_LINE] = UNKNOWN

    @property
    def id(self) -> str:
        return f"{self.kind}-{slug(self.name)[:24] or 'training'}-w{self.world_size}-{self.digest}"

    @property
    def label(self) -> str:
        return f"{self.name}, {ranks_in_words(self.world_size, self.nodes)}"

    def cells(self) -> dict[str, Any]:
        """Return a row with the columns of `Case`. Unknown values are None, or NaN for numbers to compute with."""
        known = {name: getattr(self, name) for name in DEFAULTS if hasattr(self, name)}
        return dict.fromkeys(DEFAULTS) | dict.fromkeys(_COMPUTED_WITH, math.nan) | known


def line(text: object) -> str:
    """A text of somebody else's as a field or a table holds it: one line of LONGEST_NAME characters at most, with marks
    for what no file can hold; `unknown` where nothing is left."""
    printable = "".join(each if each.isprintable() else " " for each in str(text).encode(errors="replace").decode())
    return " ".join(printable.split())[:LONGEST_NAME] or UNKNOWN
