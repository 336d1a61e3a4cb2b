"""What the flight recorders of several ranks tell together: which call of a group some ranks entered and others did
not, and where ranks called different things.

The calls of a group are numbered, alike on all its ranks (`collective_seq_id`); a recorder keeps the last ones. As in
torch's own analysis (torch/distributed/flight_recorder/components/builder.py) calls of the same number belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parabench.imports.recording import Entry, Recording
from parabench.store.record import RECORDING_HANG, Finding

# Of these operations nobody is done before the last rank has come.
MUTUAL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")

# {rank: {number: what it called}} of one group.
Ranks = Mapping[int, Mapping[int, Entry]]


def groups(dumps: Sequence[Recording]) -> dict[tuple[str, tuple[int, ...] | None], dict[int, dict[int, Entry]]]:
    """{group and its ranks: {rank: {number: what it called}}}; a rank of the group whose dump has no call of it is
    there too, if the dump goes back to the first call."""
    found: dict[tuple[str, tuple[int, ...] | None], dict[int, dict[int, Entry]]] = {}
    for dump in dumps:
        for entry in dump.entries:
            own = found.setdefault((entry.group, entry.ranks), {})
            own.setdefault(_rank(dump), {})[entry.number] = entry
    for (_, members), ranks in found.items():
        for dump in dumps:
            if dump.from_start and members is not None and _rank(dump) in members:
                ranks.setdefault(_rank(dump), {})
    return found


def _rank(dump: Recording) -> int:
    assert dump.rank is not None  # the reader refuses others
    return dump.rank


def findings(dumps: Sequence[Recording], case_id: str) -> Iterator[Finding]:
    """Of each group the first call that some ranks entered and others did not, and the first in which they differ."""
    for (group, _), ranks in groups(dumps).items():
        if (differ := _first_mismatch(ranks)) is not None:
            number, said = differ
            told = "; ".join(f"{ranks_said(own)} called {what}" for what, own in said.items())
            yield Finding(
                code="recording_mismatch",
                message=f"Call {number} of group {group} is not the same on its ranks: {told}.",
                advice="Look for a branch that ranks take differently: its calls must be the same, in the same order.",
                case_id=case_id,
            )
        if (stands := _stands(ranks)) is not None:
            number, entered, behind = stands
            entry = ranks[entered[0]][number]
            last = max((max(ranks[rank], default=0) for rank in behind), default=0)
            before = f"its call {last}" if last else "none"
            yield Finding(
                code=RECORDING_HANG,
                message=f"Call {number} of group {group}, {entry.said}, was entered by {ranks_said(entered)} and not "
                f"by {ranks_said(behind)}, whose last call of the group was {before}; it was not over when the dumps "
                "were written.",
                advice="Look at what those ranks did instead: the others wait for them, and the last calls of each "
                "rank are in the table below.",
                case_id=case_id,
            )


def _first_mismatch(ranks: Ranks) -> tuple[int, dict[str, list[int]]] | None:
    """(number, {what was called: by which ranks}) of the first call in which ranks differ."""
    for number in sorted({number for calls in ranks.values() for number in calls}):
        said: dict[str, list[int]] = {}
        for rank in sorted(ranks):
            if (entry := ranks[rank].get(number)) is not None:
                said.setdefault(entry.said, []).append(rank)
        if len(said) > 1:
            return number, said
    return None


def _stands(ranks: Ranks) -> tuple[int, list[int], list[int]] | None:
    """(number, who entered, who did not) of the first call that some ranks entered, none finished, and others did not
    come to."""
    last = {rank: max(calls, default=0) for rank, calls in ranks.items()}
    number = min(last.values()) + 1
    entered = sorted(rank for rank, calls in ranks.items() if number in calls)
    behind = sorted(rank for rank in ranks if last[rank] < number)
    # Where somebody is done with it all have come, and one dump is older than the others.
    if not entered or any(ranks[rank][number].finished for rank in entered):
        return None
    return number, entered, behind


def last_calls(dumps: Sequence[Recording]) -> list[dict[str, Any]]:
    """Of each group and rank the last call: "group", "rank", "number", "op", "state" and whether it is "finished"."""
    return [
        {
            "group": group, "rank": rank, "number": (number := max(calls)), "op": calls[number].op,
            "state": calls[number].state, "finished": calls[number].finished,
        }
        for (group, _), ranks in groups(dumps).items()
        for rank, calls in sorted(ranks.items())
        if calls
    ]  # fmt: skip


def ranks_said(ranks: Sequence[int]) -> str:
    """'rank 3', 'ranks 0-5, 7'."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank, rank])
    said = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'s' * (len(ranks) > 1)} {said}"
