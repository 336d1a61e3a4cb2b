"""A case: one configuration to measure, validated once, with an id that stays the same everywhere."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from parabench.errors import UsageError

DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")

# No CPU has more cores than this, and a pool of more threads cannot be made.
MOST_THREADS = 1024

_INTEGERS = ("world_size", "ranks_per_node", "global_batch", "seq_len", "threads", "seed")

# A strategy, algorithm or model is a short name of ours or a user's own "package.module:name".
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z_][A-Za-z0-9_]*)?|two_level\([a-z_]+,[a-z_]+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration to measure.

    `bucket_mib` is DDP's bucket cap, and for FSDP how many MiB of parameters form one unit; None is
    PyTorch's own default (DDP: 1 MiB for the first bucket, 25 after; FSDP: one block a unit).
    `ranks_per_node` groups ranks for `two_level`; None leaves the choice to the plan.
    `global_batch` counts sequences in one step over all ranks, so that every strategy and world size does
    the same work. `threads` is how many CPU threads a rank computes with: 1, as torchrun sets it, so that
    "one device" stays the same thing at every world size.

    Raises UsageError for a value that no machine could run.
    """

    strategy: str = "ddp"
    algorithm: str = "native"
    bucket_mib: float | None = None
    world_size: int = 1
    ranks_per_node: int | None = None
    model: str = "gpt-nano"
    data: str = "text"
    global_batch: int = 8
    seq_len: int = 64
    dtype: str = "float32"
    device: str = "auto"
    backend: str = "auto"
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _INTEGERS:
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name == "ranks_per_node"):
                raise UsageError(f"{name} is {value!r}; it must be a whole number")
        for name in ("strategy", "algorithm", "model", "data", "dtype", "device", "backend"):
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
        for name in ("world_size", "global_batch", "seq_len", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.bucket_mib is not None and not 0 < self.bucket_mib < 1 << 20:
            raise UsageError(f"bucket_mib is {self.bucket_mib}; give MiB above 0, or 'default'")
        if self.ranks_per_node is not None and (self.ranks_per_node < 1 or self.world_size % self.ranks_per_node):
            raise UsageError(f"ranks_per_node is {self.ranks_per_node}; it must divide world_size {self.world_size}")
        if self.threads > MOST_THREADS:
            raise UsageError(f"threads is {self.threads}; it must be {MOST_THREADS} or less")
        if not 0 <= self.seed < 1 << 32:
            raise UsageError(f"seed is {self.seed}; give a whole number from 0 to {(1 << 32) - 1}")
        for name, allowed in (("dtype", DTYPES), ("device", DEVICES), ("backend", BACKENDS)):
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
        differing = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        digest = hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:8]
        parts = [slug(self.strategy), slug(self.algorithm), f"w{self.world_size}"]
        if self.bucket_mib is not None:
            parts.append(f"{self.bucket_mib:g}mib")
        return "-".join([*parts, digest])

    @property
    def label(self) -> str:
        """What a person would call it: 'ddp ring 4 MiB, 2 ranks'."""
        bucket = "" if self.bucket_mib is None else f" {self.bucket_mib:g} MiB"
        algorithm = "" if self.strategy == "single" else f" {self.algorithm}"
        return f"{self.strategy}{algorithm}{bucket}, {self.world_size} rank{'s' * (self.world_size > 1)}"

    def reference(self) -> Case:
        """The same training on one device: what this case's losses are verified against."""
        return replace(
            self,
            strategy="single",
            algorithm="native",
            bucket_mib=None,
            world_size=1,
            ranks_per_node=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Case:
        """The reverse of `to_dict`; fields that a newer version added are ignored."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


# A week: no launch is worth more, and a timer cannot wait for ever.
LONGEST_DEADLINE_S = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How each launch measures: unmeasured warm-up steps, then measured ones.

    DDP rebuilds its buckets after the first step, so fewer than two warm-up steps are refused.
    `deadline_s` is the wall time after which a launch counts as hung; None derives it from what is known.
    """

    warmup: int = 5
    steps: int = 40
    launches: int = 3
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("warmup", "steps", "launches"):
            if type(getattr(self, name)) is not int:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be a whole number")
        for name, least, why in (
            ("warmup", 2, " because DDP rebuilds its buckets after the first step"),
            ("steps", 1, ""),
            ("launches", 1, ""),
        ):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be {least} or more{why}")
        if self.deadline_s is not None and not 0 < self.deadline_s <= LONGEST_DEADLINE_S:
            raise UsageError(
                f"deadline is {self.deadline_s} s; it must be above 0 and at most {LONGEST_DEADLINE_S:.0f}"
            )


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


def _bucket(text: str) -> float | None:
    return None if text == "default" else float(text)


def _optional_integer(text: str) -> int | None:
    return None if text == "auto" else int(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "bucket_mib": _bucket,
    "ranks_per_node": _optional_integer,
    **{name: int for name in _INTEGERS if name != "ranks_per_node"},
}

AXES = tuple(f.name for f in fields(Case))


def split_values(text: str) -> list[str]:
    """What stands between the commas, without spaces. The comma of two_level(ring,tree) separates nothing."""
    return [part.replace(" ", "") for part in re.split(r",(?![^()]*\))", text)]


def parse_axis(name: str, text: str) -> tuple[Any, ...]:
    """The values of one axis from text: `parse_axis("bucket_mib", "1,4,default")` is `(1.0, 4.0, None)`.

    `world_size` also takes `auto`. Raises UsageError with the value and what is allowed.
    """
    if name not in AXES:
        raise UsageError(f"axis {name!r} is unknown; use one of {', '.join(AXES)}")
    if name == "world_size" and text == "auto":
        return ("auto",)
    values = []
    for part in split_values(text):
        try:
            if not part:
                raise ValueError
            values.append(_PARSERS.get(name, str)(part))
        except ValueError:
            raise UsageError(f"{name}={text!r}: {part!r} is not a value of {name}") from None
    return tuple(values)
