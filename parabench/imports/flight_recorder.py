"""Read dumps of torch's flight recorder: the last collectives and messages of each rank, as JSON or as a pickle.

The layout is that of torch 2.13's `FlightRecorder` (its reader: torch/distributed/flight_recorder): `entries`, each
with `process_group` (name and description), `collective_seq_id`, `p2p_seq_id`, `profiling_name` as `nccl:all_reduce` or
`nccl:send 0->1`, sizes, types, `state`, stack `frames` and times in nanoseconds since 1970. `pg_config` has the ranks
of the groups. Only the file's name has the rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parabench.imports import literals, stream
from parabench.imports.recording import (
    LATEST_NS,
    MOST_STEP,
    Call,
    Entry,
    Recording,
    mapping,
    number_in_name,
    op_of,
    product,
    rank_in_name,
    ranks_in,
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


def read(path: Path) -> list[Recording]:
    """Return the one recording in a dump. Raises UsageError if it is damaged, or holds more than plain values."""
    numbered = number_in_name(path.name)
    rank = rank_in_name(path.name)
    rank = numbered[1] if rank is None and numbered else rank
    if rank is None:
        raise stream.unreadable(
            path,
            "it is a flight recorder's dump, and only its name could have the rank: name it as torch does, such as "
            "nccl_trace_rank_0",
        )
    found = Recording(file=path.name, kind=NAME, rank=rank)
    if literals.begins(stream.beginning(path, 4)):
        dump = literals.read(path)
        if isinstance(dump, list):
            raise stream.unreadable(path, "it is a dump by a torch before 2.4, whose entries name no group")
        entries = mapping(dump).get("entries")
    else:
        dump, entries = {}, []
        for document, key, value in stream.members(path, "entries"):
            if document:
                raise stream.unreadable(path, "another dump follows the first one in it")
            if key == "entries":
                entries.append(value)
            else:
                dump[key] = value
    try:
        _put(found, entries if isinstance(entries, list) else [], mapping(mapping(dump).get("pg_config")))
    except ValueError as error:
        raise stream.unreadable(path, error) from error
    return [found]


def _where(entry: Mapping[str, Any]) -> str:
    """Return the innermost lines of code outside of torch that made the call; empty if the dump has no stacks."""
    frames = entry.get("frames")
    lines = []
    for frame in map(mapping, frames if isinstance(frames, Sequence) else ()):
        file, name = frame.get("filename"), frame.get("name")
        if isinstance(file, str) and "/torch/" not in file and file.endswith(".py"):
            lines.append(line(f"{file}:{frame.get('line')}{f' in {name}' if isinstance(name, str) else ''}"))
    return ", from ".join(lines[:_MOST_FRAMES])


def _label(name: object, description: object) -> str:
    """Return how the page names a group."""
    return line(f"{name} ({description})" if description not in ("", "undefined", None) else name)


def _put(found: Recording, entries: Sequence[Any], config: Mapping[str, Any]) -> None:
    """Add a dump's calls, messages and groups. Raises ValueError for an entry without operation or group."""
    of_group = {str(name): ranks_in(mapping(each).get("ranks")) for name, each in config.items()}
    found.groups = {_label(name, mapping(each).get("desc")): of_group[str(name)] for name, each in config.items()}
    for at, each in enumerate(entries):
        entry = mapping(each)
        name, group = entry.get("profiling_name"), entry.get("process_group")
        if not isinstance(name, str) or not isinstance(group, (list, tuple)) or len(group) != 2:
            raise ValueError(f"entry {at} has no operation or no group, as dumps by a torch before 2.4")
        backend, _, called = name.partition(":")
        op = op_of(called.split(" ")[0])
        found.backend = found.backend or line(backend)
        ranks = of_group.get(str(group[0]))
        if ranks is None and len(of_group) == 1 and group[1] == _WORLD:
            ranks = next(iter(of_group.values()))
        message = op in MESSAGES or entry.get("is_p2p") is True
        number = whole(entry.get("p2p_seq_id" if message else "collective_seq_id"), MOST_STEP)
        if number is None:
            found.left_out["they have no number"] += 1
            continue
        made = whole(entry.get("time_created_ns"), LATEST_NS) or None
        noted = Entry(
            group=_label(*group), ranks=ranks, number=number, op=op or line(called), said=_said(op, called, entry),
            state=line(entry.get("state")), finished=_finished(backend, entry), made_ns=made or 0,
            where=_where(entry), peer=_peer(called, ranks),
        )  # fmt: skip
        (found.messages if message else found.entries).append(noted)
        if op is None:  # groups of calls (`nccl:coalesced`), splits
            found.left_out["they are no collectives"] += 1
            continue
        size = _size(op, entry)
        if size is None or ranks is None:
            found.left_out["their sizes, types or groups are unknown"] += 1
            continue
        found.calls.append(
            Call(
                number, whole(entry.get("record_id"), MOST_STEP) or 0, op, ranks, len(ranks), *size,
                made, None, _duration_ns(entry), Phase.FLIGHT,
            )
        )  # fmt: skip
    found.device = "cuda" if found.backend == "nccl" else None
    found.from_start = any(whole(mapping(each).get("record_id")) == 0 for each in entries)


def _peer(called: str, ranks: tuple[int, ...] | None) -> int | None:
    """Return the other rank of `send 0->1`, whose numbers are positions in the group."""
    match = _MESSAGE.fullmatch(called)
    place = int(match[2]) if match else None
    return ranks[place] if ranks is not None and place is not None and place < len(ranks) else None


def _duration_ns(entry: Mapping[str, Any]) -> int | None:
    """How long it ran, which NCCL's events tell where TORCH_NCCL_ENABLE_TIMING is set."""
    told = entry.get("duration_ms")
    known = type(told) in (int, float) and 0 <= told <= _LONGEST_MS  # type: ignore[operator]
    return round(told * 1e6) if known else None  # type: ignore[operator]


def _finished(backend: str, entry: Mapping[str, Any]) -> bool:
    """Whether the call was over. Of gloo's, whose state stays `scheduled`, only that it was taken off the list tells;
    NCCL takes those off too that failed."""
    over = entry.get("state") == "completed" or bool(entry.get("time_discovered_completed_ns"))
    return over or (backend == "gloo" and entry.get("retired") is True)


def _size(op: str, entry: Mapping[str, Any]) -> tuple[int, str | None] | None:
    """Return (bytes of the whole buffer, type): the larger of inputs and outputs; None if it is unknown."""
    if op == "barrier":
        return 0, None
    sides, kinds = [], set()
    for way in ("input", "output"):
        shapes, types = entry.get(f"{way}_sizes"), entry.get(f"{way}_dtypes")
        if shapes is None:
            continue
        if not isinstance(shapes, (list, tuple)) or not isinstance(types, (list, tuple)):
            return None
        # One type may stand for all.
        types = [*types, *(list(types[-1:]) or [None]) * len(shapes)]
        side = 0
        for shape, name in zip(shapes, types, strict=False):
            count, kind = product(shape), type_of(name)
            if count is None or kind is None:
                return None
            side += count * kind[1]
            kinds.add(kind[0])
        sides.append(side)
    return (max(sides), next(iter(kinds)) if len(kinds) == 1 else None) if kinds else None


# Of these operations ranks may give, or get, different sizes.
_UNEVEN = ("all_to_all", "gather", "scatter", "all_gather", "reduce_scatter")


def _said(op: str | None, called: str, entry: Mapping[str, Any]) -> str:
    """Return what must be the same on all ranks of a call: operation, bytes, type."""
    if op is None:
        return line(called)
    size = _size(op, entry)
    if size is None or op in _UNEVEN or op == "barrier":
        return op
    count, kind = size
    return f"{op} of {count:,} bytes" + (f" of {kind}" if kind else "")
