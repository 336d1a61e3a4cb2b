"""A case: one configuration to measure, validated once, with an id that stays the same everywhere."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from parabench.errors import UsageError
from parabench.models.precision import IEEE, PRECISIONS, Precision
from parabench.strategies import OPTIONAL, STRATEGIES, data_ranks, entry_of

DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")
SCHEDULES = ("gpipe", "1f1b", "interleaved")
SPLITS = ("batch", "sample", "dimension")

CHOICES = {
    "precision": tuple(PRECISIONS),
    "device": DEVICES,
    "backend": BACKENDS,
    "schedule": SCHEDULES,
    "split": SPLITS,
}

# No CPU has more cores than this, and a pool of more threads cannot be made.
MOST_THREADS = 1024
MOST_WORKERS = 256

# The fields by what they hold; those of the second line may also be None, which leaves the choice to the plan.
INTEGERS = ("world_size", "nodes", "global_batch", "seq_len", "threads", "seed", "grad_accumulation", "workers")
MAYBE_INTEGERS = ("ranks_per_node", "tp_size", "microbatches")
COUNTS = ("world_size", "nodes", "global_batch", "seq_len", "threads", "grad_accumulation", "tp_size", "microbatches")
FLAGS = (
    "no_sync", "find_unused_parameters", "static_graph", "gradient_as_bucket_view", "sequence_parallel",
    "activation_checkpointing", "compile", "fused", "pin_memory",
)  # fmt: skip
TEXTS = ("strategy", "algorithm", "model", "data", "vocabulary", *CHOICES)

# What every strategy has, and changes how a step is taken but not what it computes.
MEANS = ("activation_checkpointing", "compile", "fused", "workers", "pin_memory")

# What must agree for two cases to train the same: the fields of a reference.
TRAINING = (
    "model",
    "data",
    "vocabulary",
    "global_batch",
    "seq_len",
    "precision",
    "device",
    "backend",
    "threads",
    "seed",
)

# A strategy, algorithm or model is a short name of ours or a user's own "package.module:name".
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z_][A-Za-z0-9_]*)?|two_level\([a-z_]+,[a-z_]+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration to measure.

    `global_batch` counts samples in one step over all ranks, so that every strategy and world size does the same
    work. Of `nodes` machines each has as many of the ranks. `threads` is how many CPU threads a rank computes with: 1,
    as torchrun sets it, so that "one device" stays the same thing at every world size.

    Of the strategy, each only where it has them (`family.OPTIONAL`):
    `bucket_mib` is DDP's bucket cap, and for FSDP how many MiB of parameters form one unit; None is PyTorch's own
    default (DDP: 1 MiB for the first bucket, 25 after; FSDP: one block a unit). `ranks_per_node` groups ranks for
    `two_level` and is how many share a shard of `hsdp`. `grad_accumulation` is how many parts of a rank's batch are
    computed one after the other before the optimizer steps; with `no_sync` only the last of them reduces gradients.
    `find_unused_parameters`, `static_graph` and `gradient_as_bucket_view` are DDP's own. `tp_size` is how many
    consecutive ranks share the layers in `tp_ddp` and `tp_fsdp`; `sequence_parallel` splits also what lies between
    the layers, along the sequence. `schedule` and `microbatches` are the pipeline's.

    Of every strategy: `activation_checkpointing` computes each block's forward again in backward; `compile` is
    torch.compile, block by block; `fused` the optimizer's one-kernel step. `split` says what of the data a rank
    takes: rows of each global `batch`, what a DistributedSampler draws (`sample`), or features (`dimension`);
    `workers` and `pin_memory` are DataLoader's. `vocabulary` is a file of tiktoken's, with which text is read as
    GPT-2's tokens instead of bytes.

    Raises UsageError for a value that no machine could run.
    """

    strategy: str = "ddp"
    algorithm: str = "native"
    bucket_mib: float | None = None
    world_size: int = 1
    nodes: int = 1
    ranks_per_node: int | None = None
    model: str = "gpt-nano"
    data: str = "text"
    global_batch: int = 8
    seq_len: int = 64
    precision: str = IEEE
    device: str = "auto"
    backend: str = "auto"
    threads: int = 1
    seed: int = 0
    grad_accumulation: int = 1
    no_sync: bool = True
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    tp_size: int | None = None
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    microbatches: int | None = None
    activation_checkpointing: bool = False
    compile: bool = False
    fused: bool = True
    split: str = "batch"
    workers: int = 0
    pin_memory: bool = False
    vocabulary: str = ""

    def __post_init__(self) -> None:
        for name in (*INTEGERS, *MAYBE_INTEGERS):
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name in MAYBE_INTEGERS):
                raise UsageError(f"{name} is {value!r}; it must be a whole number")
        for name in FLAGS:
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        for name in TEXTS:
            if not is_text(getattr(self, name)):
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be a text in UTF-8")
        if self.bucket_mib is not None:
            if type(self.bucket_mib) not in (int, float):
                raise UsageError(f"bucket_mib is {self.bucket_mib!r}; give MiB, or None for PyTorch's default")
            # 4 and 4.0 are one case, so they must have one id.
            object.__setattr__(self, "bucket_mib", float(self.bucket_mib))
        for name in ("strategy", "algorithm", "model"):
            if not NAME.fullmatch(getattr(self, name)):
                raise UsageError(
                    f"{name} {getattr(self, name)!r} is not a name; use one that `parabench list` shows, "
                    "or package.module:name"
                )
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; it must be 1 or more")
        if self.bucket_mib is not None and not 0 < self.bucket_mib < 1 << 20:
            raise UsageError(f"bucket_mib is {self.bucket_mib}; give MiB above 0, or 'default'")
        for name in ("nodes", "ranks_per_node", "tp_size"):
            value = getattr(self, name)
            if value is not None and (value < 1 or self.world_size % value):
                raise UsageError(f"{name} is {value}; it must divide world_size {self.world_size}")
        if self.threads > MOST_THREADS:
            raise UsageError(f"threads is {self.threads}; it must be {MOST_THREADS} or less")
        if not 0 <= self.workers <= MOST_WORKERS:
            raise UsageError(f"workers is {self.workers}; it must be from 0 (the rank itself) to {MOST_WORKERS}")
        if not 0 <= self.seed < 1 << 32:
            raise UsageError(f"seed is {self.seed}; give a whole number from 0 to {(1 << 32) - 1}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} {getattr(self, name)!r} is unknown; use one of {', '.join(allowed)}")

    @property
    def kind(self) -> str:
        """Which kind of session measures it."""
        return "training"

    @property
    def id(self) -> str:
        """Readable and stable: the fields that people compare, then a hash of all that differ from the default.

        Fields at their default stay out of the hash, so a field added in a later version changes no old id.
        """
        differing = {name: value for name, value in self.to_dict().items() if value != DEFAULTS[name]}
        digest = hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:8]
        parts = [slug(self.strategy), slug(self.algorithm), f"w{self.world_size}"]
        if self.bucket_mib is not None:
            parts.append(f"{self.bucket_mib:g}mib")
        return "-".join([*parts, digest])

    @property
    def label(self) -> str:
        """What a person would call it: 'ddp ring 4 MiB, 2 ranks'; every option that is not at its default is named."""
        words = [self.strategy]
        if "algorithm" in entry_of(self.strategy).axes:
            words.append(self.algorithm)
        if self.bucket_mib is not None:
            words.append(f"{self.bucket_mib:g} MiB")
        words += [self._said(name) for name in NAMED if self._tells(name)]
        return f"{' '.join(words)}, {ranks_in_words(self.world_size, self.nodes)}"

    def _tells(self, name: str) -> bool:
        """Whether a label names the option: where it is set, and a pipeline's schedule always."""
        own = entry_of(self.strategy).axes
        if name == "ranks_per_node":  # else it belongs to two_level
            return name in own and self.ranks_per_node is not None
        if name == "schedule" and name in own:
            return self.strategy in STRATEGIES
        return bool(getattr(self, name) != DEFAULTS[name])

    def _said(self, name: str) -> str:
        value = getattr(self, name)
        if name == "schedule":
            return str(value)
        if type(value) is bool:
            return name if value else f"{name} off"
        return f"{name} {value}"

    @property
    def arithmetic(self) -> Precision:
        """What `precision` stands for."""
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
        """The same training on one device: what this case's losses are verified against."""
        split = "sample" if self.split == "sample" else "batch"
        return Case(strategy="single", split=split, **{name: getattr(self, name) for name in TRAINING})

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return {name: getattr(self, name) for name in DEFAULTS}  # `asdict` copies deeply, and is 10 times slower

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Case:
        """The reverse of `to_dict`; fields that a newer version added are ignored."""
        return cls(**{name: values[name] for name in DEFAULTS if name in values})


DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Case)}

# Options that a label names where they are set.
NAMED = (
    *(name for name in OPTIONAL if name not in ("algorithm", "bucket_mib")),
    *MEANS,
    "split",
)


def ranks_in_words(world_size: int, nodes: int) -> str:
    """'4 ranks', '4 ranks on 2 nodes'."""
    return f"{world_size} rank{'s' * (world_size > 1)}" + (f" on {nodes} nodes" if nodes > 1 else "")


def is_text(value: object) -> bool:
    """Whether `value` is a text that files and pages can hold; bytes that are no UTF-8 come in as lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def slug(name: str) -> str:
    """A name as file names and shells take it; of a user's own only what follows the module."""
    own = name if name.startswith("nccl:") else name.rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._]+", "-", own).strip("-")
