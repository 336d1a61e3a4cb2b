"""Define `Recording`, the content of one file, and functions for all formats: read bytes, JSON, names of operations."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

# The names that torch's profiler and flight recorder use for operations, without underscores (`_allgather_base`).
_OP = re.compile(
    r"(allreduce|allgather|reducescatter|alltoall|broadcast|reduce|gather|scatter|barrier|send|recv)"
    r"(sparse|base|single|vsingle|v|oop|(into)?tensor)?(coalesced)?"
)
_OURS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
}  # fmt: skip

# Numbers without a value, as C++ prints them.
_NAN = re.compile(r"(?<=: )-?(nan|inf)(?=[,}\s])")

# torch's other names of types (c10/core/ScalarType.h), in small letters and without `c10::`.
_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "long int": "int64", "int": "int32",
    "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8", "byte": "uint8",
    "unsigned char": "uint8", "unsigned short": "uint16", "unsigned int": "uint32", "unsigned long": "uint64",
    "complexfloat": "complex64", "complex<float>": "complex64",
    "complexdouble": "complex128", "complex<double>": "complex128",
}  # fmt: skip
_TYPE = re.compile(r"(?:u?int|b?float|complex)(8|16|32|64|128)(?:_\w+)?")

# Columns of `Recording.calls`. Unknown values are None or NaN. An entry that is not a call has no `phase`. `number` and
# `must_match` are equal on all ranks of a call. Only flight recorders have the columns after `phase`.
CALLS = (
    "step", "seq", "op", "ranks", "group_size", "bytes", "dtype", "made_s", "start_s", "duration_s", "number", "phase",
    "group", "message", "must_match", "state", "finished", "where", "peer",
)  # fmt: skip


def table_of(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with the columns CALLS. Times are floats, and other values are unchanged."""
    table = pd.DataFrame(list(rows), columns=list(CALLS), dtype=object)
    return table.astype(dict.fromkeys(("made_s", "start_s", "duration_s"), float))


@dataclass(slots=True, kw_only=True)
class Recording:
    """The content of one file, in seconds after `zero_ns`.

    - `kind`: the name of its reader
    - `rank`: `None` if neither the file nor its name has it
    - `zero_ns`: nanoseconds since 1970 on the clock of the rank's host
    - `base_ns`: the zero of the times in a trace
    - `steps`: {number: (begin, end)}
    - `parts`: rows of (step, name, begin, end), as in `store.record.Span`
    - `calls`: one row per call of a collective
    - `kernels`: {name: seconds in each step} of the kernels that compute longest
    - `whole`: whether the trace has no steps, so that the whole trace counts as one
    - `groups`: {name: ranks} of a flight recorder
    - `ops`: the entries of NCCL's Inspector
    - `tests`: the tests of nccl-tests
    - `log`: the content of NCCL's debug messages (`probes.nccl.parse_log`)
    - `skipped`: {reason: number of calls} of calls that are not complete
    - `unknown`: the reasons why values are unknown
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
    whole: bool = False
    groups: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    ops: list[dict[str, Any]] = field(default_factory=list)
    tests: list[Any] = field(default_factory=list)
    log: dict[str, Any] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)


def table_together(recordings: Sequence[Recording]) -> pd.DataFrame:
    """Return the calls of all recordings as one table with a column `rank`, in seconds after the earliest `zero_ns`."""
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
    """Return parabench's name of an operation, such as `all_gather` for `_allgather_base`; `None` if it is unknown."""
    bare = re.sub(r"[^a-z]", "", name.lower())
    found = _OP.fullmatch("barrier" if bare == "allreducebarrier" else bare)
    return _OURS.get(found[1], found[1]) if found else None


def type_of(name: object) -> tuple[str, int] | None:
    """Return (parabench's name, bytes) of a type of elements, such as ("int64", 8); `None` if it is unknown."""
    bare = str(name).lower().removeprefix("c10::")
    bare = _TYPES.get(bare, bare)
    found = _TYPE.fullmatch(bare)
    return (bare, int(found[1]) // 8) if found else ("bool", 1) if bare == "bool" else None


def product(sizes: object) -> int | None:
    """Return the number of elements of a tensor with that shape; None if it is not a shape."""
    if not isinstance(sizes, (list, tuple)) or any(type(each) is not int for each in sizes):
        return None
    return math.prod(sizes)


def ranks_in(value: Sequence[int] | str | None) -> tuple[int, ...] | None:
    """Return the ranks of a group from a list or a text such as '[0, 1]'; `None` if there are none, or not all."""
    if isinstance(value, str):
        value = [] if ".." in value else [int(each) for each in re.findall(r"\d+", value)]
    return tuple(sorted(value)) if value else None


def word(ranks: Sequence[int]) -> str:
    """Return the ranks of a group as text, as in `CollectiveSample`: `0-3` or `0,2`."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def rank_in_name(name: str) -> int | None:
    """Return the rank after the word `rank` in a file's name, as in `rank3.json` and `nccl_trace_rank_3`."""
    found = re.search(r"rank[-_.]?(\d{1,6})(?!\d)", name, re.IGNORECASE)
    return int(found[1]) if found else None


def distinct(values: Iterable[str | None]) -> list[str]:
    """Return the known values without repetitions, in their order."""
    return list(dict.fromkeys(each for each in values if each))


def content(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of a file's content, by default all. A gzip file is uncompressed."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if compressed else path.open("rb") as file:
        return file.read(size)


def text_of(raw: bytes) -> str:
    """Decode UTF-8, without the byte order mark, and with replacement characters for invalid bytes."""
    return raw.decode("utf-8-sig", errors="replace")


def parsed(text: str, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the value of a JSON document. Raises ValueError if it is damaged.

    Profilers also write control characters in strings and `nan`. `hook` receives each object when it is parsed, and
    returns the value to keep, so events need not stay in memory.
    """
    # Searching for a constant text is much faster than the pattern.
    if any(start in text for start in (": nan", ": -nan", ": inf", ": -inf")):
        text = _NAN.sub("NaN", text)
    try:
        return json.loads(text, strict=False, object_hook=hook)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON, or cut off: {error}") from error
