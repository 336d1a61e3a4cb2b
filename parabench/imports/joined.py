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

from parabench.imports.recording import OPS, Entry, Recording
from parabench.store.record import RECORDING_HANG, Finding

# No rank finishes one of these operations before the last rank has entered it.
MUTUAL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")
_COLLECTIVES = frozenset(OPS.values())
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
    """What the dumps show together: `hang` is the message of the first call that a rank did not enter; `behind` is
    {rank: number of groups in which others wait for it}; `unknown` are sentences."""

    findings: list[Finding]
    hang: str | None
    behind: dict[int, int]
    unknown: list[str]


def groups(dumps: Sequence[Recording]) -> list[Group]:
    """Return the groups in the order of the dumps."""
    found: dict[tuple[str, tuple[int, ...] | None], Group] = {}
    for dump in dumps:
        for entry in dump.entries:
            group = found.setdefault((entry.group, entry.ranks), Group(entry.group, entry.ranks))
            own = group.ranks.setdefault(_rank(dump), {})
            if entry.op in _COLLECTIVES:
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


def story(dumps: Sequence[Recording], case_id: str) -> Story:
    """Return findings about calls that differ, that a rank did not enter, or that are not finished, by their time."""
    active = _only_active(dumps)
    mismatches, missing, stuck = [], [], []
    stalled: list[tuple[int, int, str]] = []
    behind_in: Counter[int] = Counter()
    unknown: dict[str, list[str]] = {}
    for group in groups(dumps):
        if (differ := _first_mismatch(group.ranks)) is not None:
            number, said = differ
            told = "; ".join(f"{ranks_said(own)} called {what}" for what, own in said.items())
            mismatches.append(f"Call {number} of group {group.name} is not the same on its ranks: {told}.")
        stalled += _stalled(group, active)
        why = ""
        if (found := _not_entered(group.ranks, active)) is not None:
            number, entered, behind = found
            missing.append((group.ranks[entered[0]][number].made_ns, _missing(group, number, entered, behind)))
            behind_in.update(behind)
        elif differ is not None:
            continue
        elif (one := _unfinished(group)) is not None:
            stuck.append((one.made_ns, group.name, f"{_call(group, one)} was entered by {_all(group)}"))
        elif group.absent:
            reason = next(iter(group.absent.values()))
            why = f"{ranks_said([rank for rank, each in group.absent.items() if each == reason])}: {reason}"
        elif group.members is None:
            why = "the dumps do not list its ranks"
        elif not all(_finished_last(calls) for calls in group.ranks.values()) or (
            len({max(calls, default=0) for calls in group.ranks.values()}) > 1
        ):
            why = "a rank has finished a call that another has not, so their dumps may be of different times"
        if why:
            unknown.setdefault(why, []).append(group.name)
    found_hang = [text for _, text in sorted(missing)]
    texts = [(RECORDING_HANG, text, _ADVICE) for text in found_hang]
    if stalled and (found_hang or stuck):
        texts.insert(0, (RECORDING_HANG, _by_rank(stalled), _STALLED_ADVICE))
    if stuck:
        first, *others = sorted(stuck)
        same = f" It is the same in {_groups_said([name for _, name, _ in others])}." if others else ""
        texts.append((RECORDING_HANG, f"{first[2]} and finished on none.{same}", _STUCK_ADVICE))
    texts += [(RECORDING_HANG, text, _MESSAGE_ADVICE) for text in _messages(dumps)]
    texts += [("recording_mismatch", text, _MISMATCH_ADVICE) for text in mismatches]
    return Story(
        findings=[Finding(code=code, message=text, advice=advice, case_id=case_id) for code, text, advice in texts],
        hang=found_hang[0] if found_hang else None,
        behind=dict(sorted(behind_in.items())),
        unknown=[
            f"Whether ranks wait for each other in {_groups_said(names)} is unknown: {why}."
            for why, names in unknown.items()
        ],
    )


_ADVICE = (
    "Look at what the ranks that did not enter it did instead: the others wait for them. The last calls of each rank "
    "are in the table below."
)
_STALLED_ADVICE = "Look at these ranks first: their devices, or their processes, do not go on."
_STUCK_ADVICE = (
    "If a timeout wrote the dumps, all ranks came and the transfer did not end: look at the network, at devices, and "
    "at calls of other groups in front of it. Otherwise it was only in progress."
)
_MESSAGE_ADVICE = "Look at the rank that does not send or receive, if a timeout wrote the dumps."
_MISMATCH_ADVICE = "Look for a branch that ranks take differently: its calls must be the same, in the same order."


def _groups_said(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"group{'s' * (len(names) > 1)} {', '.join(names[:_NAMED])}{more}"


def _all(group: Group) -> str:
    return f"all {len(group.ranks)} ranks" if len(group.ranks) > 1 else ranks_said(list(group.ranks))


def _call(group: Group, entry: Entry) -> str:
    called = f", called at {entry.where}," if entry.where else ","
    return f"Call {entry.number} of group {group.name}, {entry.said}{called}"


def _missing(group: Group, number: int, entered: Sequence[int], behind: Sequence[int]) -> str:
    """Return the sentence about a call that some ranks did not enter."""
    entry = group.ranks[entered[0]][number]
    last = {rank: max(group.ranks[rank], default=0) for rank in behind}
    most = max(last.values())
    if most:
        before = f", whose last call of the group was its call {most}"
    elif all(not group.ranks[rank] for rank in behind) and number > 1:
        before = (
            ", whose dumps hold no call of the group" if len(behind) > 1 else ", whose dump holds no call of the group"
        )
    else:
        before = ", whose last call of the group was none"
    return (
        f"{_call(group, entry)} was entered by {ranks_said(entered)} and not by {ranks_said(behind)}{before}; it was "
        "not over when the dumps were written."
    )


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


_Found = tuple[int, list[int], list[int]]


def _not_entered(ranks: Ranks, active: bool) -> _Found | None:
    """Return (number, ranks that entered, ranks that did not) of the first call that some ranks did not enter and none
    finished."""
    # A rank without active calls may have finished a broadcast, but not an operation that needs all ranks.
    idle = [rank for rank, calls in ranks.items() if not calls]
    last = {rank: max(calls, default=0) for rank, calls in ranks.items() if calls or not active}
    least = min(last.values(), default=0)
    held = {number: entry for calls in ranks.values() for number, entry in calls.items()}
    candidates = [
        number
        for number, entry in held.items()
        if number > least or (active and idle and entry.op in MUTUAL)
    ]  # fmt: skip
    if not candidates:
        return None
    number = min(candidates)
    behind = [rank for rank, most in last.items() if most < number]
    behind += [rank for rank in idle if active and held[number].op in MUTUAL]
    entered = sorted(rank for rank, calls in ranks.items() if number in calls)
    # If a rank has finished it, all ranks had entered it, and one dump is older than the others.
    passed = active and any(calls and min(calls) > number for calls in ranks.values())
    if passed or not behind or any(ranks[rank][number].finished for rank in entered):
        return None
    return number, entered, sorted(behind)


def _first_open(calls: Mapping[int, Entry]) -> int | None:
    return min((number for number, entry in calls.items() if not entry.finished), default=None)


def _finished_last(calls: Mapping[int, Entry]) -> bool:
    return not calls or calls[max(calls)].finished


def _unfinished(group: Group) -> Entry | None:
    """Return the first call that all ranks of the group entered and none finished."""
    if group.absent or group.members is None or len(group.ranks) < len(group.members):
        return None
    first = [_first_open(calls) for calls in group.ranks.values()]
    if None in first:
        return None
    number = max(each for each in first if each is not None)
    if any(number not in calls or calls[number].finished for calls in group.ranks.values()):
        return None
    return next(iter(group.ranks.values()))[number]


def _stalled(group: Group, active: bool) -> Iterator[tuple[int, int, str]]:
    """Yield (time, rank, call) for a rank that has not finished a call which another rank has."""
    for rank, calls in group.ranks.items():
        number = _first_open(calls)
        if number is None or calls[number].op not in MUTUAL:
            continue
        for own in group.ranks.values():
            over = number in own and own[number].finished
            if over or (active and own and min(own) > number):
                yield calls[number].made_ns, rank, f"call {number} of group {group.name}"
                break


def _by_rank(stalled: Iterable[tuple[int, int, str]]) -> str:
    first: dict[int, str] = {}
    for _, rank, call in sorted(stalled):
        first.setdefault(rank, call)
    calls = "; ".join(f"rank {rank} in {call}" for rank, call in list(first.items())[:_NAMED])
    return (
        f"By {'their dumps' if len(first) > 1 else 'its dump'} {ranks_said(list(first))} had not finished calls that "
        f"another rank of the same group had: {calls}."
    )


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
        more = f"; and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
        yield f"Messages were not finished when the dumps were written: {'; '.join(texts[:_NAMED])}{more}."


def last_calls(dumps: Sequence[Recording]) -> list[dict[str, Any]]:
    """Return the last call of each rank in each group, groups with unfinished calls first."""
    listed = sorted(groups(dumps), key=lambda group: all(_finished_last(calls) for calls in group.ranks.values()))
    return [
        {
            "group": group.name, "rank": rank, "number": (number := max(calls)), "op": calls[number].op,
            "state": calls[number].state, "finished": calls[number].finished,
        }
        for group in listed
        for rank, calls in sorted(group.ranks.items())
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
