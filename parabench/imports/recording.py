"""Define the content of a file, `Recording`, and read names that profilers share: operations, types, ranks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pandas as pd

from parabench.probes.nccl import MOST

MOST_RANKS = 1 << 20
MOST_STEP = (1 << 31) - 1
# Nanoseconds since 1970. A time after the year 2200 is damaged.
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


# Columns of `Recording.calls`. Unknown is None or NaN.
CALLS = (
    "step", "seq", "op", "ranks", "group_size", "bytes", "dtype", "made_s", "start_s", "duration_s", "number", "phase",
    "group", "message", "must_match", "state", "finished", "where", "peer",
)  # fmt: skip


def table_of(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with the columns CALLS, whose times are floats and other values are as given."""
    table = pd.DataFrame(list(rows), columns=list(CALLS), dtype=object)
    return table.astype(dict.fromkeys(("made_s", "start_s", "duration_s"), float))


@dataclass(slots=True, kw_only=True)
class Recording:
    """The content of one file. `kind` is its reader's name; `rank` is None if neither the file nor its name has it.

    All times are seconds after `zero_ns`, nanoseconds since 1970 on the clock of the rank's host. `steps` are {number:
    (begin, end)}, `parts` rows of (step, name, begin, end) with names as in `store.record.Span`. `calls` has one row
    per call of a collective. `number` is the call's number in its group, the same on all ranks. The columns behind
    `phase` are those of a flight recorder: whether an entry is a send, a recv or a batch of these; the part that must
    match on all ranks; the lines of code; the other rank of a send or recv. An entry that is no call has no `phase`.

    `skipped` are {reason: number of calls}, `unknown` reasons why something is unknown. `alone`: the process had no
    peers. `whole`: the steps are one window, the whole trace. `base_ns` is the zero of the trace's own times. `kernels`
    are the longest ones that compute, {name: seconds in each step}. `groups` are {name: ranks} of a flight recorder;
    `from_start`: it has dropped no call yet. `tests` are nccl-tests', and `log` is the content of NCCL's debug messages
    (`probes.nccl.parse_log`).
    """

    file: str
    kind: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    device: str | None = None
    backend: str | None = None
    gpus: list[dict[str, Any]] = field(default_factory=list)
    zero_ns: int = 0
    base_ns: int = 0
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    parts: list[tuple[int, str, float, float]] = field(default_factory=list)
    calls: pd.DataFrame = field(default_factory=lambda: table_of(()))
    kernels: dict[str, list[float]] = field(default_factory=dict)
    alone: bool = False
    whole: bool = False
    groups: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    from_start: bool = False
    ops: list[dict[str, Any]] = field(default_factory=list)
    tests: list[Any] = field(default_factory=list)
    log: dict[str, Any] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)

    def move(self, later_s: float) -> None:
        """Correct the clock, which is this much ahead if `later_s` is negative."""
        self.zero_ns += round(later_s * 1e9)
        self.base_ns += round(later_s * 1e9)


def table_together(recordings: Sequence[Recording]) -> pd.DataFrame:
    """Return the calls of recordings as one table, with their `rank`, in seconds after the first recording's zero."""
    zero_ns = min((one.zero_ns for one in recordings if one.steps or len(one.calls)), default=0)
    tables = [
        one.calls.assign(
            rank=one.rank,
            **{name: (one.calls[name] + (one.zero_ns - zero_ns) / 1e9).round(9) for name in ("made_s", "start_s")},
        )
        for one in recordings
        if len(one.calls)
    ]
    return pd.concat(tables, ignore_index=True) if tables else table_of(()).assign(rank=None)


@lru_cache(maxsize=1 << 10)
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
    """Return a whole number from 0 to `most`, and None for anything else."""
    return value if type(value) is int and 0 <= value <= most else None


def product(sizes: object) -> int | None:
    """Return the number of elements of a tensor with that shape; None if it is not a shape."""
    if not isinstance(sizes, (list, tuple)) or any(whole(each) is None for each in sizes):
        return None
    return whole(math.prod(sizes))


def ranks_in(value: object) -> tuple[int, ...] | None:
    """Return the ranks of a group from a list of numbers or a text such as '[0, 1]'; None for anything else, such as a
    text that was shortened with dots."""
    if isinstance(value, str):
        if not re.fullmatch(r"\[?\s*\d{1,7}(\s*,\s*\d{1,7})*\s*\]?", value):
            return None
        value = [int(each) for each in re.findall(r"\d+", value)]
    if not isinstance(value, (list, tuple)):
        return None
    if not value or any(whole(each, MOST_RANKS - 1) is None for each in value) or len(set(value)) < len(value):
        return None
    return tuple(sorted(value))


def word(ranks: Sequence[int]) -> str:
    """Return the ranks of a group as `CollectiveSample` has them: `0-3` or `0,2`."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
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
    """Return the known values without repetitions, in their order."""
    return list(dict.fromkeys(each for each in values if each))
