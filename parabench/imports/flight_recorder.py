"""Dumps of torch's flight recorder: the last calls of collectives of each rank, as JSON or as a pickle of plain values.

The layout is that of torch 2.13's `FlightRecorder` (its own reader: torch/distributed/flight_recorder): `entries`, each
with `process_group` (name and description), `collective_seq_id`, `p2p_seq_id`, `profiling_name` as `nccl:all_reduce`,
sizes, types, `state` and moments in nanoseconds since 1970; `pg_config` has the ranks of the groups. The rank is in the
file's name alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parabench.errors import UsageError
from parabench.imports import literals, stream
from parabench.imports.recording import (
    LATEST_NS,
    MOST_STEP,
    REMEDY,
    Call,
    Entry,
    Recording,
    mapping,
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
# By these members a dump is known.
KEYS = frozenset({"pg_config", "pg_status", "entries", "comm_lib_version", "nccl_version", "host_metadata"})

# Milliseconds of a call that took no longer than a year.
_LONGEST_MS = 366 * 86_400 * 1e3
# What c10d calls the group of all ranks.
_WORLD = "default_pg"


def read(path: Path) -> Recording:
    """What a dump tells. Raises UsageError for one that is damaged, or holds more than plain values."""
    rank = rank_in_name(path.name)
    if rank is None:
        raise UsageError(
            f"{path} is a flight recorder's dump, and only its name could tell of which rank: name it as torch does, "
            "such as nccl_trace_rank_0"
        )
    found = Recording(file=path.name, kind=NAME, rank=rank)
    if literals.begins(stream.beginning(path, 4)):
        dump = mapping(literals.read(path))
        entries = dump.get("entries")
        _put(found, entries if isinstance(entries, list) else [], mapping(dump.get("pg_config")))
    else:
        kept: list[dict[str, Any]] = []
        head: dict[str, Any] = {}
        for key, value in stream.members(path, "entries"):
            if key != "entries":
                head[key] = value
            else:
                # Stacks are most of a dump.
                kept.append({name: mapping(value)[name] for name in _READ if name in mapping(value)})
        _put(found, kept, mapping(head.get("pg_config")))
    if not found.entries:
        found.unknown.append("it holds no calls: TORCH_FR_BUFFER_SIZE says how many are kept")
    found.check_room()
    return found


_READ = (
    "process_group", "profiling_name", "collective_seq_id", "p2p_seq_id", "is_p2p", "record_id", "input_sizes",
    "output_sizes", "input_dtypes", "output_dtypes", "state", "retired", "time_created_ns", "duration_ms",
    "time_discovered_completed_ns",
)  # fmt: skip


def _put(found: Recording, entries: list[Any], config: Mapping[str, Any]) -> None:
    """The calls and entries of a dump. Raises UsageError for a moment or number that is none."""
    of_group = {name: ranks_in(mapping(told).get("ranks")) for name, told in config.items()}
    backends: dict[str, None] = {}
    for at, told in enumerate(entries):
        entry = mapping(told)
        name, group = entry.get("profiling_name"), entry.get("process_group")
        if not isinstance(name, str) or not isinstance(group, (list, tuple)) or len(group) != 2:
            raise UsageError(f"{found.file} cannot be read: entry {at} tells no operation or no group; {REMEDY}")
        backend, _, called = name.partition(":")
        op = op_of(called.split(" ")[0])
        if op is None:  # groups of calls (`nccl:coalesced`), splits
            found.leave_out("they are no collectives")
            continue
        backends[line(backend)] = None
        ranks = of_group.get(str(group[0]))
        if ranks is None and len(of_group) == 1 and group[1] == _WORLD:
            ranks = next(iter(of_group.values()))
        message = op in MESSAGES or entry.get("is_p2p") is True
        number = whole(entry.get("p2p_seq_id" if message else "collective_seq_id"), MOST_STEP)
        if number is None:
            found.leave_out("they have no number")
            continue
        size = _size(op, entry)
        if not message:
            said_group = line(f"{group[0]} ({group[1]})" if group[1] not in ("", "undefined") else group[0])
            found.entries.append(
                Entry(
                    group=said_group, ranks=ranks, number=number, op=op, said=_said(op, entry),
                    state=line(entry.get("state")), finished=_finished(backend, entry),
                )
            )  # fmt: skip
        if size is None or ranks is None:
            found.leave_out("their sizes, types or groups are unknown")
            continue
        found.calls.append(
            Call(
                number, whole(entry.get("record_id"), MOST_STEP) or 0, op, ranks, len(ranks), *size,
                whole(entry.get("time_created_ns"), LATEST_NS) or None, None, _duration_ns(entry), Phase.FLIGHT,
            )
        )  # fmt: skip
    found.backend = next(iter(backends), None)
    found.device = "cuda" if found.backend == "nccl" else None
    found.from_start = any(whole(mapping(each).get("record_id")) == 0 for each in entries)


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
    """(bytes of the whole buffer, type): the larger of what goes in and what comes out; None where it is unknown."""
    sides = [list(_tensors(entry, way)) for way in ("input", "output")]
    if op == "barrier":
        return 0, None
    known = [each for side in sides for each in side if each is not None]
    if not known or any(None in side for side in sides):
        return None
    most = max(sum(count * size for count, (_, size) in side) for side in sides)  # type: ignore[misc]
    kinds = {name for _, (name, _) in known}
    return most, next(iter(kinds)) if len(kinds) == 1 else None


def _tensors(entry: Mapping[str, Any], way: str) -> Iterator[tuple[int, tuple[str, int]] | None]:
    """(elements, type) of each tensor that goes `input` or `output`; None for one of which that is unknown."""
    shapes, types = entry.get(f"{way}_sizes"), entry.get(f"{way}_dtypes")
    if shapes is None:
        return
    if not isinstance(shapes, (list, tuple)) or not isinstance(types, (list, tuple)):
        yield None
        return
    for at, shape in enumerate(shapes):
        # One type may stand for all.
        kind = type_of(types[at] if at < len(types) else types[-1] if types else None)
        count = product(shape)
        yield None if count is None or kind is None else (count, kind)


# Of these operations ranks may give, or get, different sizes.
_UNEVEN = ("all_to_all", "gather", "scatter", "all_gather", "reduce_scatter")


def _said(op: str, entry: Mapping[str, Any]) -> str:
    """What all ranks of a call must say alike: operation, elements that go in, type."""
    size = _size(op, entry)
    if size is None or op in _UNEVEN or op == "barrier":
        return op
    count, kind = size
    return f"{op} of {count:,} bytes" + (f" of {kind}" if kind else "")
