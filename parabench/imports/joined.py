"""Compare the flight recorders of several ranks: calls that some ranks entered and others did not, calls that are not
finished, and calls that differ.

The calls of a group have the same numbers on all its ranks (`collective_seq_id`), and a recorder keeps the last ones.
As in torch's own analysis (torch/distributed/flight_recorder/components/builder.py) calls of the same number belong
together. A dump may hold active calls only (`onlyActive`); then a call that a rank lacks is either finished there or
was never entered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parabench.analysis.step.calls import MUTUAL
from parabench.analysis.text import format
from parabench.imports.recording import Entry, Recording, op_of
from parabench.store.record import RECORDING_HANG, Finding

# Messages in a sentence.
_NAMED = 4

# {rank: {number: call}} of one group.
Ranks = Mapping[int, Mapping[int, Entry]]


@dataclass(frozen=True)
class Group:
    """The calls of one group. A rank without calls is in `ranks` if its dump shows that it has none; `absent` is {rank:
    reason} for the others. `members` is None if the dumps do not list the group's ranks."""

    name: str
    members: tuple[int, ...] | None
    ranks: dict[int, dict[int, Entry]] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Story:
    """What the dumps show together: `hang` is the message of the first call that a rank did not enter; `waits` are
    sentences about ranks that others wait for, and groups for which that is unknown."""

    findings: list[Finding]
    hang: str | None
    waits: list[str]


def groups(dumps: Sequence[Recording]) -> list[Group]:
    """Return the groups in the order of the dumps."""
    found: dict[tuple[str, tuple[int, ...] | None], Group] = {}
    for dump in dumps:
        for entry in dump.entries:
            group = found.setdefault((entry.group, entry.ranks), Group(entry.group, entry.ranks))
            own = group.ranks.setdefault(_rank(dump), {})
            if op_of(entry.op) is not None:
                own[entry.number] = entry
            elif entry.number in own:  # the state of coalesced calls is that of `nccl:coalesced` behind them
                own[entry.number] = replace(own[entry.number], finished=entry.finished, state=entry.state)
    active = _only_active(dumps)
    there = {_rank(dump): dump for dump in dumps}
    for group in found.values():
        for rank in group.members or ():
            if rank not in there:
                group.absent[rank] = "it has no dump"
                continue
            dump = there[rank]
            if rank not in group.ranks and (group.name, group.members) not in dump.groups.items():
                group.absent[rank] = "its dump does not list the group"
            elif not group.ranks.get(rank) and not dump.from_start and not active:
                group.ranks.pop(rank, None)
                group.absent[rank] = "its recorder has dropped older calls; raise TORCH_FR_BUFFER_SIZE"
            else:
                group.ranks.setdefault(rank, {})
    return [group for group in found.values() if any(group.ranks.values())]


def _rank(dump: Recording) -> int:
    assert dump.rank is not None  # the reader refuses others
    return dump.rank


def _only_active(dumps: Sequence[Recording]) -> bool:
    """Return whether the dumps hold only calls that are not finished."""
    every = [entry for dump in dumps for entry in (*dump.entries, *dump.messages)]
    return bool(every) and not any(entry.finished for entry in every)


@dataclass(frozen=True)
class _Missing:
    """A call that the ranks `behind` did not enter, and for which those that did wait."""

    call: Entry
    waiting: list[int]
    behind: list[int]
    last: str


def story(dumps: Sequence[Recording], case_id: str) -> Story:
    """Return the findings about a hang, causes before consequences, and about calls that differ.

    A rank is a cause if others wait for it and it waits for none, or if its device has not finished what others have.
    """
    active = _only_active(dumps)
    mismatches: list[str] = []
    missing: list[_Missing] = []
    stuck: list[tuple[int, str, str]] = []
    stalled: list[tuple[int, int, str]] = []
    unknown: dict[str, list[str]] = {}
    for group in groups(dumps):
        last = [calls[max(calls)] for calls in group.ranks.values() if calls]
        stalled += _stalled(group, active)
        if (differ := _first_mismatch(group.ranks)) is not None:
            told = "; ".join(f"{ranks_said(own)} called {what}" for what, own in differ[1].items())
            mismatches.append(f"Call {differ[0]} of group {group.name} is not the same on its ranks: {told}.")
        if (found := _not_entered(group.ranks, active)) is not None:
            missing.append(_Missing(*found, _last_in_group(group, found[0], found[2])))
        elif differ is not None:
            continue
        elif (one := _unfinished(group)) is not None:
            text = f"{_call(one)} was entered by all {len(group.ranks)} ranks and finished on none."
            stuck.append((one.made_ns, group.name, text))
        elif group.absent:
            reason = next(iter(group.absent.values()))
            which = ranks_said(rank for rank, each in group.absent.items() if each == reason)
            unknown.setdefault(f"{which}: {reason}", []).append(group.name)
        elif group.members is None:
            unknown.setdefault("the dumps do not list its ranks", []).append(group.name)
        elif not all(each.finished for each in last) or len({each.number for each in last}) > 1:
            unknown.setdefault(
                "a rank has finished a call that another has not, so their dumps may be of different times", []
            ).append(group.name)
    missing.sort(key=lambda each: each.call.made_ns)
    causes, waited_for = _causes(missing, {rank for _, rank, _ in stalled}, dumps)
    hangs = []
    if stalled and (missing or stuck):
        first = {rank: call for _, rank, call in sorted(stalled, reverse=True)}
        calls = "; ".join(f"rank {rank} in {first[rank]}" for rank in sorted(first)[:_NAMED])
        own = "their dumps" if len(first) > 1 else "its dump"
        hangs.append(
            f"By {own} {ranks_said(first)} had not finished calls that another rank of the same group "
            f"had: {calls}.{' '.join(['', *waited_for])}"
        )
        waited_for = []
    if missing:
        hangs.append(
            f"{_call(missing[0].call)} was entered by {ranks_said(missing[0].waiting)} and not by "
            f"{ranks_said(missing[0].behind)}, {missing[0].last}; it was not over when the dumps were written.{causes}"
        )
    if later := [f"call {each.call.number} of group {each.call.group}, {each.call.said}, by {ranks_said(each.behind)}"
                 for each in missing[1:]]:  # fmt: skip
        hangs.append(f"Later calls were not entered, either: {format.listed(later, _NAMED)}.")
    if stuck:
        (_, _, text), *others = sorted(stuck)
        same = f" It is the same in {_groups_said([name for _, name, _ in others])}." if others else ""
        hangs.append(text + same)
    hangs += _messages(dumps)
    waits = [
        f"Whether ranks wait for each other in {_groups_said(names)} is unknown: {why}."
        for why, names in unknown.items()
    ]
    return Story(
        findings=[
            *(Finding(code=RECORDING_HANG, message=text, advice=_HANG_ADVICE, case_id=case_id) for text in hangs),
            *(
                Finding(code="recording_mismatch", message=text, advice=_MISMATCH_ADVICE, case_id=case_id)
                for text in mismatches
            ),
        ],
        hang=next(iter(hangs), None) if missing else None,
        waits=[*waited_for, *waits],
    )


def _causes(missing: Sequence[_Missing], stalled: set[int], dumps: Sequence[Recording]) -> tuple[str, list[str]]:
    """Return sentences about what the ranks that others wait for did last, and about how often others wait for them."""
    behind_in = Counter(rank for each in missing for rank in each.behind)
    waiting = {rank for each in missing for rank in each.waiting}
    free = sorted(behind_in.keys() - waiting - stalled)
    told = []
    for dump in dumps:
        if dump.rank in free[:_NAMED]:
            own = max(dump.entries, key=lambda each: each.made_ns, default=None)
            if own is None:
                told.append(f"rank {dump.rank} has none in its dump")
            elif own.made_ns:
                state = "finished" if own.finished else "not finished"
                where = f", at {own.where}" if own.where else ""
                told.append(f"rank {dump.rank} called {own.said} of group {own.group}{where} ({state})")
    causes = f" Last calls in any group: {'; '.join(told)}." if told else ""
    waits = []
    if max(behind_in.values(), default=1) > 1:
        counts = sorted(set(behind_in.values()), reverse=True)
        ranks = [ranks_said(rank for rank, each in behind_in.items() if each == count) for count in counts]
        who = (f"{own} in {count} group{'s' * (count > 1)}" for own, count in zip(ranks, counts, strict=True))
        waits.append(f"Others wait for {', '.join(who)}.")
    if behind_in and not free and not stalled:
        waits.append(f"{ranks_said(behind_in).capitalize()} wait for each other: none of them entered all calls.")
    return causes, waits


_HANG_ADVICE = (
    "Look first at ranks that did not enter, or did not finish, what others did: the others wait for them. If no "
    "timeout wrote the dumps, it may only have been in progress."
)
_MISMATCH_ADVICE = "Look for a branch that ranks take differently: its calls must be the same, in the same order."


def _groups_said(names: Sequence[str]) -> str:
    return f"group{'s' * (len(names) > 1)} {format.listed(names, _NAMED)}"


def _call(entry: Entry) -> str:
    called = f" called at {entry.where}," if entry.where else ""
    return f"Call {entry.number} of group {entry.group}, {entry.said},{called}"


def _last_in_group(group: Group, entry: Entry, behind: Sequence[int]) -> str:
    """Return what the ranks behind called last in a group."""
    most = max(max(group.ranks[rank], default=0) for rank in behind)
    if most or entry.number == 1:
        return f"whose last call of the group was {f'its call {most}' if most else 'none'}"
    return "whose dumps hold no call of the group" if len(behind) > 1 else "whose dump holds no call of the group"


def _first_mismatch(ranks: Ranks) -> tuple[int, dict[str, list[int]]] | None:
    """Return (number, {call: ranks}) of the first call in which ranks differ."""
    for number in sorted({number for calls in ranks.values() for number in calls}):
        said: dict[str, list[int]] = {}
        for rank in sorted(ranks):
            if (entry := ranks[rank].get(number)) is not None:
                said.setdefault(entry.said, []).append(rank)
        if len(said) > 1:
            return number, said
    return None


def _not_entered(ranks: Ranks, active: bool) -> tuple[Entry, list[int], list[int]] | None:
    """Return (call, ranks that entered, ranks that did not) for the first call that some ranks did not enter and none
    finished."""
    # A rank without active calls may have finished a broadcast, but not an operation that needs all ranks.
    idle = [rank for rank, calls in ranks.items() if active and not calls]
    last = {rank: max(calls, default=0) for rank, calls in ranks.items() if rank not in idle}
    held = {number: entry for calls in ranks.values() for number, entry in calls.items()}
    least = min(last.values(), default=0)
    number = min((n for n, each in held.items() if n > least or (idle and each.op in MUTUAL)), default=None)
    if number is None:
        return None
    behind = [rank for rank, most in last.items() if most < number] + idle * (held[number].op in MUTUAL)
    entered = sorted(rank for rank, calls in ranks.items() if number in calls)
    # If a rank has finished it, all ranks had entered it, and one dump is older than the others.
    over = any(_has_finished(calls, number, active) for calls in ranks.values())
    return None if over or not behind else (held[number], entered, sorted(behind))


def _has_finished(calls: Mapping[int, Entry], number: int, active: bool) -> bool:
    """Return whether a rank has finished a call; a dump of active calls has none that are finished."""
    return (number in calls and calls[number].finished) or (active and bool(calls) and min(calls) > number)


def _first_open(calls: Mapping[int, Entry]) -> int | None:
    return min((number for number, entry in calls.items() if not entry.finished), default=None)


def _unfinished(group: Group) -> Entry | None:
    """Return the first call that all ranks of the group entered and none finished."""
    first = [_first_open(calls) for calls in group.ranks.values()]
    if group.absent or group.members is None or None in first:
        return None
    number = max(each for each in first if each is not None)
    same = [calls.get(number) for calls in group.ranks.values()]
    return same[0] if all(each is not None and not each.finished for each in same) else None


def _stalled(group: Group, active: bool) -> Iterator[tuple[int, int, str]]:
    """Yield (time, rank, call) for a rank that has not finished a call which another rank has."""
    for rank, calls in group.ranks.items():
        number = _first_open(calls)
        if number is None or calls[number].op not in MUTUAL:
            continue
        if any(_has_finished(own, number, active) for own in group.ranks.values()):
            yield calls[number].made_ns, rank, f"call {number} of group {group.name}"


def _messages(dumps: Sequence[Recording]) -> Iterator[str]:
    """Yield a sentence about sends and recvs that are not finished."""
    there = {_rank(dump) for dump in dumps}
    pending: dict[tuple[int, str, int | None], list[Entry]] = {}
    for dump in dumps:
        # The state of batched messages is that of `nccl:coalesced` of the same number.
        over = {(each.group, each.number) for each in dump.messages if each.finished}
        for each in dump.messages:
            if (each.group, each.number) not in over:
                pending.setdefault((_rank(dump), each.op, each.peer), []).append(each)
    told = []
    for (rank, op, peer), own in pending.items():
        first = min(own, key=lambda each: each.number)
        what = f"rank {rank}'s {op}"
        if peer is not None and op in ("send", "recv"):
            other = "recv" if op == "send" else "send"
            lacks = len(pending.get((peer, other, rank), [])) < len(own)
            what += f" {'to' if op == 'send' else 'from'} rank {peer}"
            if peer not in there:
                reason = ", whose dump is missing"
            else:
                reason = f", which has no unfinished {other} for it" if lacks else ""
        else:
            lacks, reason = False, ""
        told.append((not lacks, first.made_ns, f"{what} (call {first.number} of group {first.group}){reason}"))
    if told:
        texts = [text for _, _, text in sorted(told)]
        yield f"Messages were not finished when the dumps were written: {format.listed(texts, _NAMED)}."


def last_calls(dumps: Sequence[Recording]) -> list[dict[str, Any]]:
    """Return the last calls of each group with the ranks whose last call each is: groups in which ranks differ first,
    then those with unfinished calls."""
    found = []
    for group in groups(dumps):
        alike: dict[tuple[Any, ...], list[int]] = {}
        for rank, calls in group.ranks.items():
            each = calls[max(calls)] if calls else None
            key = (each.number, each.op, each.state, each.finished) if each else (0, "none", "", True)
            alike.setdefault(key, []).append(rank)
        names = ("number", "op", "state", "finished")
        found.append([
            {"group": group.name, "ranks": ranks_said(ranks)} | dict(zip(names, key, strict=True))
            for key, ranks in sorted(alike.items())
        ])  # fmt: skip
    found.sort(key=lambda rows: (len(rows) < 2, all(row["finished"] for row in rows)))
    return [row for rows in found for row in rows]


def ranks_said(ranks: Iterable[int]) -> str:
    """'rank 3', 'ranks 0-5, 7'."""
    ranks = list(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {format.runs(ranks)}"
