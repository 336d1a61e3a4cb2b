"""Read dumps of torch's flight recorder: the last collectives and messages of each rank, as JSON or as a pickle.

torch 2.13's `FlightRecorder` writes this layout, and torch/distributed/flight_recorder reads it. `profiling_name` is
`nccl:all_reduce` or `nccl:send 0->1`. Times are nanoseconds since 1970. Only the file's name has the rank.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from parabench.imports.recording import (
    Recording,
    content,
    op_of,
    parsed,
    product,
    rank_in_name,
    ranks_in,
    table_of,
    text_of,
    type_of,
)
from parabench.plan.case import line
from parabench.store.record import MESSAGES, Phase

NAME = "flight recorder"

# The number of lines of a stack that are shown.
_MOST_FRAMES = 3
# c10d's name for the group of all ranks.
_WORLD = "default_pg"
# The number at the end of a file's name.
_NUMBER = re.compile(r"(?<!\d)(\d{1,6})(?:\.json|\.gz|\.pickle|\.pkl)*$")
# A message's name has the positions of its two ranks in the group: `send 0->1`, `recv 1<-0`.
_MESSAGE = re.compile(r"(?:send|recv) (\d+)(?:->|<-)(\d+)")
_NOT_PLAIN = "a flight recorder's dump has texts, numbers, lists and dicts only, and nothing else is unpickled"
# The first byte of a pickle of protocol 2 or later.
_PICKLE = b"\x80"
# In these operations, the sizes of ranks may differ.
_UNEVEN = ("all_to_all", "gather", "scatter", "all_gather", "reduce_scatter", "barrier")


def read(path: Path) -> Recording:
    """Read a dump. Raises an error of `imports._DAMAGED` if it is damaged or of an old torch."""
    rank, number = rank_in_name(path.name), _NUMBER.search(path.name)
    rank = int(number[1]) if rank is None and number else rank
    if rank is None:
        raise ValueError(
            "only the name of a flight recorder's dump has its rank: name it as torch does, such as nccl_trace_rank_0"
        )
    raw = content(path)
    dump = unpickled(raw) if raw[:1] == _PICKLE else parsed(text_of(raw))
    entries = dump.get("entries")
    if not isinstance(entries, list):
        raise ValueError("it has no list of entries, as dumps of torch before 2.4")
    zero_ns = min((time for each in entries if (time := each.get("time_created_ns"))), default=0)
    found = Recording(file=path.name, kind=NAME, rank=rank, zero_ns=zero_ns)
    found.calls = table_of(_calls(found, entries, dump.get("pg_config") or {}))
    found.device = "cuda" if found.backend == "nccl" else None
    return found


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that executes nothing: it makes only texts, numbers, lists, tuples and dicts."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}; {_NOT_PLAIN}")

    def persistent_load(self, _: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to an object outside of the file; {_NOT_PLAIN}")


def unpickled(raw: bytes) -> Any:
    """Return the value of a pickle of plain values. Raises ValueError for a damaged pickle, and for other objects."""
    try:
        return _PlainUnpickler(io.BytesIO(raw), errors="replace").load()
    # A damaged pickle can cause any error, because its operations receive unexpected values.
    except Exception as error:
        raise ValueError(error) from error


def _label(name: object, description: object) -> str:
    """Return the name of a group for the report."""
    return line(f"{name} ({description})" if description not in ("", "undefined", None) else name)


def _calls(
    found: Recording, entries: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a dump as rows of `Recording.calls`, and add its groups to the recording.

    Raises ValueError for an entry without operation or group.
    """
    of_group = {str(name): ranks_in(each.get("ranks")) for name, each in config.items()}
    found.groups = {_label(name, each.get("desc")): of_group[str(name)] for name, each in config.items()}
    for at, entry in enumerate(entries):
        if "profiling_name" not in entry or len(entry.get("process_group") or ()) != 2:
            raise ValueError(f"entry {at} has no operation or no group, as dumps of torch before 2.4")
        backend, _, called = entry["profiling_name"].partition(":")
        group, description = entry["process_group"]
        found.backend = found.backend or line(backend)
        op = op_of(called.split(" ")[0])
        ranks = of_group.get(str(group))
        if ranks is None and len(of_group) == 1 and description == _WORLD:
            ranks = next(iter(of_group.values()))
        message = op in MESSAGES or entry.get("is_p2p") is True
        number = entry.get("p2p_seq_id" if message else "collective_seq_id")
        if number is None or op is None:  # groups of calls (`nccl:coalesced`), splits
            found.skipped[f"left out: they {'have no number' if number is None else 'are no collectives'}"] += 1
        if number is None:
            continue
        size, dtype = (0, None) if op == "barrier" else _size(entry)
        if op is not None and (size is None or ranks is None):
            found.skipped["without a size or group: their sizes, types or groups are unknown"] += 1
        must_match = op or line(called)
        if op and size is not None and op not in _UNEVEN:
            must_match += f" of {size:,} bytes" + (f" of {dtype}" if dtype else "")
        peer = _MESSAGE.fullmatch(called)
        made, took = entry.get("time_created_ns"), entry.get("duration_ms")
        # gloo's state stays `scheduled`; only `retired` shows that a call has ended. NCCL retires failed calls, too.
        finished = entry.get("state") == "completed" or bool(entry.get("time_discovered_completed_ns"))
        yield {
            "step": number, "seq": entry.get("record_id") or 0, "op": op or must_match, "ranks": ranks,
            "group_size": None if ranks is None else len(ranks), "bytes": size, "dtype": dtype,
            "made_s": (made - found.zero_ns) / 1e9 if made else None,
            # NCCL measures the duration if TORCH_NCCL_ENABLE_TIMING is set.
            "duration_s": None if took is None else took / 1e3, "number": number,
            "phase": None if op is None else Phase.FLIGHT, "group": _label(group, description), "message": message,
            "must_match": must_match, "state": line(entry.get("state")),
            "finished": finished or (backend == "gloo" and entry.get("retired") is True), "where": _where(entry),
            "peer": ranks[int(peer[2])] if peer and ranks is not None else None,
        }  # fmt: skip


def _where(entry: Mapping[str, Any]) -> str:
    """Return the innermost lines of code outside of torch that made a call; empty if the dump has no stacks."""
    lines = []
    for frame in entry.get("frames") or ():
        file, name = frame["filename"], frame.get("name")
        if "/torch/" not in file and file.endswith(".py"):
            lines.append(line(f"{file}:{frame.get('line')}" + (f" in {name}" if name else "")))
    return ", from ".join(lines[:_MOST_FRAMES])


def _size(entry: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return (bytes, type) of a call's inputs or its outputs, whichever is larger; `None` if unknown."""
    sides, kinds = Counter[str](), set[str]()
    for way in ("input", "output"):
        shapes, types = entry.get(f"{way}_sizes") or [], entry.get(f"{way}_dtypes") or [""]
        # A single type applies to all.
        types = [*types, *types[-1:] * len(shapes)][: len(shapes)]
        for shape, name in zip(shapes, types, strict=True):
            count, kind = product(shape), type_of(name)
            if count is None or kind is None:
                return None, None
            sides[way] += count * kind[1]
            kinds.add(kind[0])
    if not kinds:
        return None, None
    return max(sides.values()), kinds.pop() if len(kinds) == 1 else None
