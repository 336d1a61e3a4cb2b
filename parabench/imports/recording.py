"""Define what a reader returns for a file, and read the names that profilers share: operations, types, ranks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parabench.probes.nccl import MOST
from parabench.store.record import Phase

MOST_RANKS = 1 << 20
MOST_STEP = (1 << 31) - 1
# Nanoseconds since 1970: what is later than the year 2200 is no moment.
LATEST_NS = 7_258_118_400 * 10**9

REMEDY = "take it out of the folder, or write it again"

# Operations in torch's profiler and flight recorder without underscores, such as `_allgather_base`, and in ours.
_OP = re.compile(
    r"(allreduce|allgather|reducescatter|alltoall|broadcast|reduce|gather|scatter|barrier|send|recv)"
    r"(sparse|base|single|vsingle|v|oop|(into)?tensor)?(coalesced)?"
)
_OURS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
}  # fmt: skip

# torch's other names of types (c10/core/ScalarType.h), in small letters and without `c10::`.
_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "long int": "int64", "int": "int32",
    "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8", "byte": "uint8",
    "unsigned char": "uint8", "unsigned short": "uint16", "unsigned int": "uint32", "unsigned long": "uint64",
    "complexfloat": "complex64", "complex<float>": "complex64",
    "complexdouble": "complex128", "complex<double>": "complex128",
}  # fmt: skip
_TYPE = re.compile(r"(?:u?int|b?float|complex)(8|16|32|64|128)(?:_\w+)?")


class Call(NamedTuple):
    """One rank's call of a collective, in nanoseconds since 1970 on the clock of the rank's host.

    Unknown is None. `number` is the call's number in its group as torch counts it, the same on all ranks.
    """

    step: int
    seq: int
    op: str
    ranks: tuple[int, ...] | None
    group_size: int | None
    bytes: int | None
    dtype: str | None
    made_ns: int | None
    start_ns: int | None
    duration_ns: int | None
    phase: Phase
    number: int | None = None


class StepPart(NamedTuple):
    """An activity of a rank within a step, named as in `store.record.Span`."""

    step: int
    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call in a flight recorder: `group` is c10d's name of its group, `number` the call's number in that group.

    `said` must be the same on all its ranks. `ranks` are the group's, None if the dump does not name them. `peer` is
    the other rank of a send or recv. `made_ns` is when the host made the call, `where` the line of code.
    """

    group: str
    ranks: tuple[int, ...] | None
    number: int
    op: str
    said: str
    state: str
    finished: bool
    made_ns: int = 0
    where: str = ""
    peer: int | None = None


@dataclass(slots=True, kw_only=True)
class Recording:
    """The content of one file. `kind` is its reader's name; `rank` is None if neither the file nor its name has it.

    `steps` are {number: (begin, end)} in nanoseconds; `left_out` and `unsized` {reason: number of calls}; `unknown` are
    reasons why something is unknown. `alone`: the process had no peers. `whole`: the steps are one window, the whole
    trace. Its clock counts from `base_ns`, and is `ahead_ns` ahead of the first rank's. `kernels` are the longest ones
    that compute, {name: seconds in each step}. A flight recorder has `groups`, {name: ranks}, and `messages`, its sends
    and recvs; `from_start`: it has not dropped a call yet. `tests` are nccl-tests', and `log` is what NCCL's debug
    messages show (`probes.nccl.parse_log`).
    """

    file: str
    kind: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    device: str | None = None
    backend: str | None = None
    gpus: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    parts: list[StepPart] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    kernels: dict[str, list[float]] = field(default_factory=dict)
    alone: bool = False
    whole: bool = False
    entries: list[Entry] = field(default_factory=list)
    messages: list[Entry] = field(default_factory=list)
    groups: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    from_start: bool = False
    ops: list[dict[str, Any]] = field(default_factory=list)
    base_ns: int = 0
    ahead_ns: int = 0
    tests: list[Any] = field(default_factory=list)
    log: dict[str, Any] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    unsized: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)


def op_of(name: str) -> str | None:
    """Return our name of an operation: `all_gather` for `_allgather_base`; None if it is not known."""
    bare = re.sub(r"[^a-z]", "", name.lower())
    found = _OP.fullmatch("barrier" if bare == "allreducebarrier" else bare)
    return _OURS.get(found[1], found[1]) if found else None


def type_of(name: object) -> tuple[str, int] | None:
    """Return (our name of an element's type, its bytes); None if it is not known."""
    bare = name.lower().removeprefix("c10::") if isinstance(name, str) else ""
    bare = _TYPES.get(bare, bare)
    found = _TYPE.fullmatch(bare)
    return (bare, int(found[1]) // 8) if found else ("bool", 1) if bare == "bool" else None


def whole(value: object, most: int = MOST) -> int | None:
    """A whole number from 0 to `most`, None for anything else."""
    return value if type(value) is int and 0 <= value <= most else None


def product(sizes: object) -> int | None:
    """How many elements a tensor of that shape has; None for what is no shape."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        return None
    known = [whole(each) for each in sizes]
    if None in known or len(known) > 64:
        return None
    count = math.prod(each for each in known if each is not None)
    return count if count <= MOST else None


def ranks_in(value: object) -> tuple[int, ...] | None:
    """The ranks of a group, from a list of numbers or a text such as '[0, 1]', each once; None for another, or one that
    was shortened with dots."""
    if isinstance(value, str):
        if not re.fullmatch(r"\[?\s*\d{1,7}(\s*,\s*\d{1,7})*\s*\]?", value):
            return None
        value = [int(each) for each in re.findall(r"\d+", value)]
    if not isinstance(value, (list, tuple)):
        return None
    known = [whole(each, MOST_RANKS - 1) for each in value]
    if not known or None in known or len(set(known)) < len(known):
        return None
    return tuple(sorted(each for each in known if each is not None))


def word(ranks: Sequence[int]) -> str:
    """Return the ranks of a group as `CollectiveSample` has them: `0-3` or `0,2`."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def rank_in_name(name: str) -> int | None:
    """Return the rank behind the word `rank` in a file's name, as in `rank3.json` and `nccl_trace_rank_3`."""
    found = re.search(r"rank[-_.]?(\d{1,7})(?!\d)", name, re.IGNORECASE)
    return whole(int(found[1]), MOST_RANKS - 1) if found else None


def number_in_name(name: str) -> tuple[str, int] | None:
    """Return the number that ends a file's name and the text in front of it: ("dump_", 3) for `dump_3.json`."""
    bare = re.sub(r"(\.pt|\.trace|\.json|\.gz|\.pickle|\.pkl)+$", "", name)
    found = re.fullmatch(r"(.*?)(?<!\d)(\d{1,7})", bare, re.DOTALL)
    return (found[1], int(found[2])) if found and int(found[2]) < MOST_RANKS else None


def distinct(values: Iterable[str | None]) -> list[str]:
    """The known values, each once, in their order."""
    return list(dict.fromkeys(each for each in values if each))
