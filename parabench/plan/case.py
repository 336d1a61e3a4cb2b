"""Define `Case`, a configuration to measure, and `RecordedCase`, a training run that another tool recorded."""

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

# No CPU has more cores than this, and torch cannot create a pool of more threads.
MOST_THREADS = 1024
MOST_WORKERS = 256

# Ids and labels contain up to this many caps of a list, otherwise only their number, the first and the last.
MOST_CAPS = 8

# Roles of fields. CORE: the strategy and its ranks. TRAINING: the field decides the computed losses, so the
# single-device reference has the same value. DERIVED: the value of the reference follows from it. MEANS: every strategy
# has the field, which changes the execution of a step but not its result. Other fields have no role: `axes` of a
# strategy lists those that it has.
CORE, TRAINING, DERIVED, MEANS = "core", "training", "derived", "means"

# A strategy, algorithm or model is the name of a built-in one, or a user's own "package.module:name".
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z_][A-Za-z0-9_]*)?|two_level\([a-z_]+,[a-z_]+\)")
Name = Annotated[str, Meta(pattern=f"^(?:{NAME.pattern})$(?!\n)")]
NAMED = Field(expected="a name that `parabench list` shows, or package.module:name")
Count = Annotated[int, Meta(ge=1)]
Threads = Annotated[int, Meta(ge=1, le=MOST_THREADS)]
Mebibytes = Annotated[float, Meta(gt=0, le=1 << 20)]


class BaseCase(Record, frozen=True):
    """Base class of all kinds of cases."""

    def cells(self) -> dict[str, Any]:
        """Return {field: value} for a row of a table. Lists are text, such as '1+4+25'."""
        fields = structs.asdict(self)
        return {name: list_text(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @property
    def digest(self) -> str:
        """Return eight hexadecimal digits that identify the values of all fields.

        Fields at their default do not count, so a new field with a default does not change existing digests.
        """
        fields = declared(type(self)).items()
        differing = {name: value for name, each in fields if (value := getattr(self, name)) != each.default}
        return hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:8]


class Case(BaseCase, frozen=True, kw_only=True):
    """A training configuration to measure. docs/reference/axes.md describes the fields.

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
    # The samples of a step on all ranks together, so that all strategies and world sizes have equal work.
    global_batch: Annotated[Count, Field(role=TRAINING)] = 8
    seq_len: Annotated[Count, Field(role=TRAINING)] = 64
    precision: Annotated[str, Field(choices=tuple(PRECISIONS), role=TRAINING)] = IEEE
    device: Annotated[str, Field(choices=DEVICES, role=TRAINING)] = "auto"
    backend: Annotated[str, Field(choices=BACKENDS, role=TRAINING)] = "auto"
    # CPU threads per rank, so that the single-device reference is the same for every world size. torchrun also sets 1.
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
    # Processes that load data for a rank; 0: the rank itself loads it.
    workers: Annotated[int, Meta(ge=0, le=MOST_WORKERS), Field(role=MEANS)] = 0
    pin_memory: Annotated[bool, Field(role=MEANS)] = False
    split: Annotated[str, Field(choices=SPLITS, role=DERIVED)] = "batch"
    vocabulary: Annotated[str, Field(path=True, unset="bytes", role=TRAINING)] = ""
    # Plans set `auto` unless the user chooses a level, and `resolve` replaces it with the model's level.
    verification: Annotated[str, Field(choices=(OF_THE_MODEL, *VERIFICATIONS), role=TRAINING)] = EXACT

    @property
    def id(self) -> str:
        """Return a stable id such as 'ddp-ring-w2-4mib-d96fa40a', which ends with the digest of all fields."""
        parts = [slug(self.strategy), slug(self.algorithm), f"w{self.world_size}"]
        if self.bucket_mib is not None:
            caps = _caps(self.bucket_mib).replace("e+", "e").replace("+", "_").replace(" ", "_")
            parts.append(f"{caps}mib")
        return "-".join([*parts, self.digest])

    @property
    def label(self) -> str:
        """Return the name for people, with all options that differ from their default: 'ddp ring 4 MiB, 2 ranks'."""
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
        """Return the size limit of all buckets, or of FSDP's units, in MiB; None without a limit or for a list."""
        return None if isinstance(self.bucket_mib, tuple) else self.bucket_mib

    @property
    def bucket_caps(self) -> tuple[float, ...]:
        """Return the list of size limits of DDP's buckets in MiB; empty if `bucket_mib` is not a list."""
        return self.bucket_mib if isinstance(self.bucket_mib, tuple) else ()

    @property
    def arithmetic(self) -> Precision:
        """Return the number formats of `precision`."""
        return PRECISIONS[self.precision]

    @property
    def data_ranks(self) -> int:
        """Return the number of ranks, or of groups of ranks, that divide the global batch among themselves."""
        return data_ranks(self.strategy, self.world_size, self.tp_size)

    @property
    def batch_parts(self) -> int:
        """Return the number of equal parts of the global batch: ranks x accumulated gradients x micro-batches."""
        return self.data_ranks * self.grad_accumulation * (self.microbatches or 1)

    def reference(self) -> Case:
        """Return the case that trains the same model on one device, to verify the losses of this case."""
        # At level `same_split`, the device computes the parts of each batch one after the other. The parts of several
        # ranks start from equal buffers: `grad_accumulation` is the number of these ranks, `microbatches` the number of
        # parts per rank.
        training: dict[str, Any] = {name: getattr(self, name) for name in fields_of(TRAINING)}
        training["split"] = "sample" if self.split == "sample" else "batch"
        if self.verification == SAME_SPLIT:
            ranks = self.data_ranks
            several = {"grad_accumulation": ranks, "microbatches": self.batch_parts // ranks}
            single = {"grad_accumulation": self.grad_accumulation, "microbatches": self.microbatches}
            training |= several if ranks > 1 else single
        return Case(strategy="single", **training)


DEFAULTS: dict[str, Any] = {name: each.default for name, each in declared(Case).items()}


def fields_of(role: str) -> tuple[str, ...]:
    """Return the names of the fields of `Case` that have this role."""
    return tuple(name for name, each in declared(Case).items() if each.field.role == role)


# The fields that a label names if they differ from their default. The strategy, the algorithm, the bucket size and the
# ranks have separate places in it. TRAINING fields are left out, except for a weaker verification.
LABELED = tuple(
    name
    for name in DEFAULTS
    if name == "verification" or name not in (*fields_of(CORE), *fields_of(TRAINING), "algorithm", "bucket_mib")
)


def ranks_in_words(world_size: int, nodes: int) -> str:
    """Return '4 ranks', or '4 ranks on 2 nodes'."""
    return f"{world_size} rank{'s' if world_size > 1 else ''}" + (f" on {nodes} nodes" if nodes > 1 else "")


def _caps(bucket_mib: float | tuple[float, ...]) -> str:
    """Return the value of `bucket_mib` as text: '4', '1+4+25', '9caps 1 to 25', or '4+' for a list of one cap."""
    if not isinstance(bucket_mib, tuple):
        return f"{bucket_mib:g}"
    caps = [f"{cap:g}" for cap in bucket_mib]
    if len(caps) > MOST_CAPS:
        return f"{len(caps)}caps {caps[0]} to {caps[-1]}"
    return "+".join(caps) + "+" * (len(caps) == 1)


def slug(name: str) -> str:
    """Return a name without characters that are unsafe in file names and shells. A custom name loses its module."""
    own = name if name.startswith("nccl:") else name.rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._]+", "-", own).strip("-")


# -- training runs that parabench did not configure -------------------------------------------------------------------

UNKNOWN = "unknown"
# The longest name that fits into a table, in characters.
LONGEST_NAME = 100

OneLine = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,100}$(?!\n)")]
Ranks = Annotated[int, Meta(ge=1, le=1 << 20)]
_A_LINE = Field(expected="a line of 1 to 100 characters")
# Columns of numbers: an unknown value is NaN.
_COMPUTED_WITH = ("global_batch", "seq_len")


class RecordedCase(BaseCase, frozen=True, kw_only=True, tag_field="kind", tag="recorded"):
    """A training run that another tool recorded, with `world_size` ranks on at least `nodes` machines.

    `device` and `backend` are `unknown` if the files do not name them. All other fields of a `Case` are unknown.
    """

    kind: ClassVar[str] = "recorded"
    # The values in columns of a launch that only apply to training runs of parabench.
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
        """Return {column: value} with the fields of `Case`. Unknown values are None, unknown numbers NaN."""
        known = {name: getattr(self, name) for name in DEFAULTS if hasattr(self, name)}
        return dict.fromkeys(DEFAULTS) | dict.fromkeys(_COMPUTED_WITH, math.nan) | known


def line(text: object) -> str:
    """Return foreign `text` as one printable line of at most LONGEST_NAME characters; `unknown` if it is empty.

    Characters that UTF-8 cannot encode become question marks.
    """
    printable = "".join(each if each.isprintable() else " " for each in str(text).encode(errors="replace").decode())
    return " ".join(printable.split())[:LONGEST_NAME] or UNKNOWN
