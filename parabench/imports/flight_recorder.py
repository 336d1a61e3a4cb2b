"""Read dumps of torch's flight recorder: the last collectives and messages of each rank, as JSON or as a pickle.

The layout is that of torch 2.13's `FlightRecorder` (its reader: torch/distributed/flight_recorder): `entries`, each
with `process_group` (name and description), `collective_seq_id`, `p2p_seq_id`, `profiling_name` as `nccl:all_reduce` or
`nccl:send 0->1`, sizes, types, `state`, stack `frames` and times in nanoseconds since 1970. `pg_config` has the ranks
of the groups. Only the file's name has the rank.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parabench.imports import literals, stream
from parabench.imports.recording import (
    LATEST_NS,
    MOST_STEP,
    Recording,
    mapping,
    number_in_name,
    op_of,
    product,
    rank_in_name,
    ranks_in,
    table_of,
    type_of,
    whole,
)
from parabench.plan.case import line
from parabench.store.record import MESSAGES, Phase

NAME = "flight recorder"

# Milliseconds of a call that took no longer than a year.
_LONGEST_MS = 366 * 86_400 * 1e3
# Lines of a stack that are shown.
_MOST_FRAMES = 3
# c10d's name for the group of all ranks.
_WORLD = "default_pg"
# A message's name has the positions of its two ranks in the group: `send 0->1`, `recv 1<-0`.
_MESSAGE = re.compile(r"(?:send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")
# Ranks may give, or get, different sizes in these operations.
_UNEVEN = ("all_to_all", "gather", "scatter", "all_gather", "reduce_scatter", "barrier")


def read(path: Path) -> Recording:
    """Return the content of a dump. Raises UsageError if it is damaged, or holds more than plain values."""
    numbered = number_in_name(path.name)
    rank = rank_in_name(path.name)
    rank = numbered[1] if rank is None and numbered else rank
    if rank is None:
        why = "only the name of a flight recorder's dump has its rank: name it as torch does, such as nccl_trace_rank_0"
        raise stream.unreadable(path, why)
    if literals.begins(stream.beginning(path, 4)):
        dump = dict(mapping(literals.read(path)))
    else:
        dump = {"entries": []}
        for key, value in stream.members(path, "entries"):
            if key == "entries":
                dump["entries"].append(value)
            else:
                dump[key] = value
    entries = dump.get("entries")
    if not isinstance(entries, list):
        raise stream.unreadable(path, "it has no list of entries, as dumps by a torch before 2.4")
    entries = list(map(mapping, entries))
    made = [time for each in entries if (time := whole(each.get("time_created_ns"), LATEST_NS))]
    found = Recording(file=path.name, kind=NAME, rank=rank, zero_ns=min(made, default=0))
    try:
        found.calls = table_of(_calls(found, entries, mapping(dump.get("pg_config"))))
    except ValueError as error:
        raise stream.unreadable(path, error) from error
    found.device = "cuda" if found.backend == "nccl" else None
    found.from_start = any(whole(each.get("record_id")) == 0 for each in entries)
    return found


def _label(name: object, description: object) -> str:
    """Return the name of a group on the page."""
    return line(f"{name} ({description})" if description not in ("", "undefined", None) else name)


def _calls(
    found: Recording, entries: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a dump as rows of `Recording.calls`, and add its groups to the recording.

    Raises ValueError for an entry without operation or group.
    """
    of_group = {str(name): ranks_in(mapping(each).get("ranks")) for name, each in config.items()}
    found.groups = {_label(name, mapping(each).get("desc")): of_group[str(name)] for name, each in config.items()}
    for at, entry in enumerate(entries):
        name, group = entry.get("profiling_name"), entry.get("process_group")
        if not isinstance(name, str) or not isinstance(group, (list, tuple)) or len(group) != 2:
            raise ValueError(f"entry {at} has no operation or no group, as dumps by a torch before 2.4")
        backend, _, called = name.partition(":")
        found.backend = found.backend or line(backend)
        op = op_of(called.split(" ")[0])
        ranks = of_group.get(str(group[0]))
        if ranks is None and len(of_group) == 1 and group[1] == _WORLD:
            ranks = next(iter(of_group.values()))
        message = op in MESSAGES or entry.get("is_p2p") is True
        number = whole(entry.get("p2p_seq_id" if message else "collective_seq_id"), MOST_STEP)
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
        made = whole(entry.get("time_created_ns"), LATEST_NS)
        took: Any = entry.get("duration_ms")
        # NCCL measures the duration if TORCH_NCCL_ENABLE_TIMING is set.
        took = took if type(took) in (int, float) and 0 <= took <= _LONGEST_MS else math.nan
        # gloo's state stays `scheduled`; only `retired` shows that a call has ended. NCCL retires failed calls, too.
        finished = entry.get("state") == "completed" or bool(entry.get("time_discovered_completed_ns"))
        yield {
            "step": number, "seq": whole(entry.get("record_id"), MOST_STEP) or 0, "op": op or must_match,
            "ranks": ranks, "group_size": None if ranks is None else len(ranks), "bytes": size, "dtype": dtype,
            "made_s": (made - found.zero_ns) / 1e9 if made else None, "duration_s": took / 1e3,
            "number": number, "phase": None if op is None else Phase.FLIGHT, "group": _label(*group),
            "message": message, "must_match": must_match, "state": line(entry.get("state")),
            "finished": finished or (backend == "gloo" and entry.get("retired") is True), "where": _where(entry),
            "peer": ranks[int(peer[2])] if peer and ranks is not None and int(peer[2]) < len(ranks) else None,
        }  # fmt: skip


def _where(entry: Mapping[str, Any]) -> str:
    """Return the innermost lines of code outside of torch that made the call; empty if the dump has no stacks."""
    frames = entry.get("frames")
    lines = []
    for frame in map(mapping, frames if isinstance(frames, Sequence) else ()):
        file, name = frame.get("filename"), frame.get("name")
        if isinstance(file, str) and "/torch/" not in file and file.endswith(".py"):
            lines.append(line(f"{file}:{frame.get('line')}{f' in {name}' if isinstance(name, str) else ''}"))
    return ", from ".join(lines[:_MOST_FRAMES])


def _size(entry: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return (bytes of the whole buffer, type): the larger of inputs and outputs; None if it is unknown."""
    sides, kinds = Counter[str](), set[str]()
    for way in ("input", "output"):
        shapes, types = entry.get(f"{way}_sizes"), entry.get(f"{way}_dtypes")
        if shapes is None:
            continue
        if not isinstance(shapes, (list, tuple)) or not isinstance(types, (list, tuple)) or not types:
            return None, None
        # One type may stand for all.
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
