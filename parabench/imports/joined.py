"""Compare the flight recorders of several ranks: calls that some ranks entered and others did not, calls that are not
finished, and calls that differ.

The calls of a group have the same numbers on all its ranks (`collective_seq_id`), and a recorder keeps the last ones.
As in torch's own analysis (torch/distributed/flight_recorder/components/builder.py) calls of the same number belong
together. A dump may hold active calls only (`onlyActive`); then a call that a rank lacks is either finished there or
was never entered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd

from parabench.analysis import format
from parabench.analysis.step.calls import MUTUAL
from parabench.imports.recording import Recording
from parabench.store.record import RECORDING_HANG, Finding

# The most items that a sentence lists.
MOST_NAMED = 4

_HANG_ADVICE = (
    "Look first at ranks that did not enter, or did not finish, what others did: the others wait for them. If no "
    "timeout wrote the dumps, it may only have been in progress."
)
_MISMATCH_ADVICE = "Look for a branch that ranks take differently: its calls must be the same, in the same order."


@dataclass(frozen=True)
class Group:
    """The calls of one group: `first` has one row for each number, `held` and `over` are tables of numbers by ranks:
    whether the rank's dump holds the call, and whether the rank is known to have finished it.

    `absent` is {rank: reason} for ranks that may have calls without a dump of them. `members` is None if the dumps do
    not list the group's ranks.
    """

    name: str
    members: tuple[int, ...] | None
    # DataFrames; the labels of their rows and columns are numbers, which pandas' types do not express.
    rows: Any
    first: Any
    held: Any
    over: Any
    absent: dict[int, str]

    @property
    def last(self) -> dict[int, int]:
        """Return the number of each rank's last call, 0 if it has none."""
        return {rank: int(max(own.index[own], default=0)) for rank, own in self.held.items()}

    @property
    def active(self) -> Any:
        return self.held & ~self.over

    @property
    def first_open(self) -> dict[int, int]:
        """Return the number of the first call that is not finished of each rank that has one."""
        return {rank: int(own.idxmax()) for rank, own in self.active.items() if own.any()}


@dataclass(frozen=True)
class Story:
    """What the dumps show together: `hang` is the message of the first call that a rank did not enter; `waits` are
    sentences about ranks that others wait for, and groups for which that is unknown; `last_calls` are rows of a table.
    """

    findings: list[Finding]
    hang: str | None
    waits: list[str]
    last_calls: list[dict[str, Any]]


def groups(dumps: Sequence[Recording], calls: pd.DataFrame, active: bool) -> Iterator[Group]:
    """Yield the groups that have calls, in their order. `active`: the dumps hold only calls that are not finished."""
    there = {dump.rank: dump for dump in dumps}
    entries = calls[~calls["message"].astype(bool)]
    entries = entries.assign(number=entries["number"].astype(int))
    known = entries["ranks"].map(lambda ranks: ranks or ())
    grouped: Any = entries.groupby(["group", known], sort=False)
    for (name, members), rows in grouped:
        absent, ranks = {}, [*dict.fromkeys(rows["rank"])]
        for rank in members:
            own = there.get(rank)
            if own is None:
                absent[rank] = "it has no dump"
            elif rank in ranks:
                continue
            elif (name, members) not in own.groups.items():
                absent[rank] = "its dump does not list the group"
            elif not own.from_start and not active:
                absent[rank] = "its recorder has dropped older calls; raise TORCH_FR_BUFFER_SIZE"
            else:
                ranks.append(rank)
        # The state of coalesced calls is that of `nccl:coalesced` behind them.
        rows = rows.assign(finished=rows.groupby(["rank", "number"])["finished"].transform("last"))
        rows = rows[rows["phase"].notna()].drop_duplicates(["rank", "number"], keep="last")
        if rows.empty:
            continue
        state = rows.pivot(index="number", columns="rank", values="finished").reindex(columns=ranks).sort_index()
        held = state.notna()
        over = state.eq(True)
        if active:  # a rank has finished the calls before its first active one
            over |= (held.cumsum() == 0) & held.any()
        first = rows.drop_duplicates("number", keep="last").set_index("number")
        yield Group(str(name), members or None, rows, first, held, over, absent)


class _Note(NamedTuple):
    """A note about one group. `behind` are the ranks that did not enter, or did not finish, a call of others."""

    kind: Literal["unfinished", "not entered", "stuck", "mismatch", "unknown"]
    made_s: float
    group: str
    text: str
    behind: Sequence[int] = ()
    waiting: Sequence[int] = ()
    short: str = ""


def _notes(group: Group, active: bool) -> Iterator[_Note]:
    """Yield the notes about a group: at most one of `not entered`, `stuck` and `unknown`."""

    def note(kind: Any, number: int, text: str, **more: Any) -> _Note:
        made = group.first.loc[number, "made_s"]
        short = f"call {number} of group {group.name}"
        return _Note(kind, made if format.known(made) else 0.0, group.name, text, **{"short": short} | more)

    def call(number: int) -> str:
        where = group.first.loc[number, "where"]
        return (
            f"Call {number} of group {group.name}, {group.first.loc[number, 'must_match']}"
            f"{f', called at {where}' * bool(where)},"
        )

    last, opened = group.last, group.first_open
    for rank, number in opened.items():
        if group.first.loc[number, "op"] in MUTUAL and group.over.loc[number].any():
            yield note("unfinished", number, "", behind=[rank])
    kinds = group.rows.groupby("number")["must_match"].nunique() > 1
    if kinds.any():
        number = int(kinds.idxmax())
        rows = group.rows[group.rows["number"] == number].sort_values("rank").groupby("must_match", sort=False)
        told = "; ".join(f"{ranks_text(own['rank'])} called {what}" for what, own in rows)
        yield note("mismatch", number, f"Call {number} of group {group.name} is not the same on its ranks: {told}.")
    number, behind = _not_entered(group, active)
    if behind:
        entered = sorted(rank for rank, held in group.held.loc[number].items() if held)
        most = max(last[rank] for rank in behind)
        dumps = "whose dumps hold" if len(behind) > 1 else "whose dump holds"
        own = f"whose last call of the group was {f'its call {most}' if most else 'none'}"
        yield note(
            "not entered",
            number,
            f"{call(number)} was entered by {ranks_text(entered)} and not by {ranks_text(behind)}, "
            f"{own if most or number == 1 else f'{dumps} no call of the group'}; it was not over when the dumps were "
            "written.",
            behind=behind,
            waiting=entered,
            short=f"call {number} of group {group.name}, {group.first.loc[number, 'must_match']}, "
            f"by {ranks_text(behind)}",
        )
    elif not kinds.any():
        number = max(opened.values(), default=0)
        if not group.absent and group.members and len(opened) == len(last) and group.active.loc[number].all():
            yield note("stuck", number, f"{call(number)} was entered by all {len(last)} ranks and finished on none.")
        elif reason := _why_unknown(group):
            yield _Note("unknown", 0.0, group.name, reason)


def _not_entered(group: Group, active: bool) -> tuple[int, list[int]]:
    """Return the first call that some ranks did not enter and none finished, and these ranks."""
    mutual = group.first["op"].isin(MUTUAL)
    # A rank without active calls may have finished a broadcast, but not an operation that needs all ranks.
    idle = [rank for rank, most in group.last.items() if active and not most]
    last = {rank: most for rank, most in group.last.items() if rank not in idle}
    later = group.first.index[(group.first.index > min(last.values(), default=0)) | (mutual & bool(idle))]
    number = int(min(later, default=0))
    # If a rank has finished it, all ranks had entered it, and one dump is older than the others.
    if not number or group.over.loc[number].any():
        return 0, []
    return number, sorted([rank for rank, most in last.items() if most < number] + idle * bool(mutual[number]))


def _why_unknown(group: Group) -> str:
    """Return the reason why it is unknown whether ranks of a group wait for each other; empty if none does."""
    if group.absent:
        reason = next(iter(group.absent.values()))
        return f"{ranks_text(rank for rank, each in group.absent.items() if each == reason)}: {reason}"
    if group.members is None:
        return "the dumps do not list its ranks"
    last = {rank: most for rank, most in group.last.items() if most}
    if len(set(last.values())) == 1 and all(group.over.loc[most, rank] for rank, most in last.items()):
        return ""
    return "a rank has finished a call that another has not, so their dumps may be of different times"


def story(dumps: Sequence[Recording], calls: pd.DataFrame, case_id: str) -> Story:
    """Return the findings about a hang, causes before consequences, and about calls that differ.

    A rank is a cause if others wait for it and it waits for none, or if its device has not finished what others have.
    """
    active = len(calls) > 0 and not calls["finished"].any()
    every = list(groups(dumps, calls, active))
    notes = sorted((note for group in every for note in _notes(group, active)), key=lambda note: note.made_s)
    unfinished, missing, stuck, mismatches, unknown = (
        [note for note in notes if note.kind == kind]
        for kind in ("unfinished", "not entered", "stuck", "mismatch", "unknown")
    )
    first = {note.behind[0]: note.short for note in reversed(unfinished)}
    causes, waits = _causes(missing, set(first), calls)
    hangs = []
    if unfinished and (missing or stuck):
        told = "; ".join(f"rank {rank} in {first[rank]}" for rank in sorted(first)[:MOST_NAMED])
        hangs.append(
            f"By {'their dumps' if len(first) > 1 else 'its dump'} {ranks_text(first)} had not finished calls that "
            f"another rank of the same group had: {told}.{' '.join(['', *waits])}"
        )
        waits = []
    if missing:
        hangs.append(f"{missing[0].text}{causes}")
    if missing[1:]:
        hangs.append(
            f"Later calls were not entered, either: {format.listed([n.short for n in missing[1:]], MOST_NAMED)}."
        )
    if stuck:
        others = [note.group for note in stuck[1:]]
        hangs.append(stuck[0].text + (f" It is the same in {_groups_text(others)}." if others else ""))
    hangs += _messages(calls[calls["message"].astype(bool)], {dump.rank for dump in dumps})
    for reason in dict.fromkeys(note.text for note in unknown):
        names = _groups_text([note.group for note in unknown if note.text == reason])
        waits.append(f"Whether ranks wait for each other in {names} is unknown: {reason}.")
    findings = [Finding(RECORDING_HANG, text, _HANG_ADVICE, case_id) for text in hangs]
    findings += [Finding("recording_mismatch", note.text, _MISMATCH_ADVICE, case_id) for note in mismatches]
    return Story(findings, hangs[0] if missing else None, waits, last_calls(every))


def _causes(missing: Sequence[_Note], unfinished: set[int], calls: pd.DataFrame) -> tuple[str, list[str]]:
    """Return sentences about what the ranks that others wait for did last, and about how often others wait for them."""
    behind_in = Counter(rank for note in missing for rank in note.behind)
    free = sorted(behind_in.keys() - {rank for note in missing for rank in note.waiting} - unfinished)
    told = []
    for rank in free[:MOST_NAMED]:
        own: Any = calls[(calls["rank"] == rank) & ~calls["message"].astype(bool)]
        if own.empty:
            told.append(f"rank {rank} has none in its dump")
        elif own["made_s"].notna().any():
            last = own.loc[own["made_s"].idxmax()]
            where = f", at {last['where']}" if last["where"] else ""
            state = "finished" if last["finished"] else "not finished"
            told.append(f"rank {rank} called {last['must_match']} of group {last['group']}{where} ({state})")
    causes = f" Last calls in any group: {'; '.join(told)}." if told else ""
    waits = []
    if max(behind_in.values(), default=1) > 1:
        counts = sorted(set(behind_in.values()), reverse=True)
        ranks = [ranks_text(rank for rank, each in behind_in.items() if each == count) for count in counts]
        who = (f"{own} in {count} group{'s' * (count > 1)}" for own, count in zip(ranks, counts, strict=True))
        waits.append(f"Others wait for {', '.join(who)}.")
    if behind_in and not free and not unfinished:
        waits.append(f"{ranks_text(behind_in).capitalize()} wait for each other: none of them entered all calls.")
    return causes, waits


def _groups_text(names: Sequence[str]) -> str:
    return f"group{'s' * (len(names) > 1)} {format.listed(names, MOST_NAMED)}"


def _messages(rows: pd.DataFrame, there: Container[int | None]) -> Iterator[str]:
    """Yield a sentence about sends and recvs that are not finished, first those without a partner.

    `there` are the ranks that have a dump.
    """
    # The state of batched messages is that of `nccl:coalesced` of the same number.
    over = rows.groupby(["rank", "group", "number"])["finished"].transform("any").astype(bool)
    pending: dict[Any, Any] = dict(list(rows[~over].groupby(["rank", "op", rows["peer"].fillna(-1)], sort=False)))
    told = []
    for (rank, op, peer), own in pending.items():
        first = own.loc[own["number"].astype(int).idxmin()]
        lacks, reason, what = False, "", f"rank {rank}'s {op}"
        if peer >= 0:
            other = "recv" if op == "send" else "send"
            lacks = len(pending.get((peer, other, rank), ())) < len(own)
            what += f" {'to' if op == 'send' else 'from'} rank {peer}"
            reason = f", which has no unfinished {other} for it" * lacks if peer in there else ", whose dump is missing"
        text = f"{what} (call {first['number']} of group {first['group']}){reason}"
        told.append((not lacks, first["made_s"], text))
    if told:
        texts = [text for _, _, text in sorted(told)]
        yield f"Messages were not finished when the dumps were written: {format.listed(texts, MOST_NAMED)}."


def last_calls(every: Iterable[Group]) -> list[dict[str, Any]]:
    """Return the last calls of each group with the ranks whose last call each is: groups in which ranks differ first,
    then those with unfinished calls."""
    found = []
    for group in every:
        calls = group.rows.set_index(["rank", "number"])
        alike: dict[tuple[Any, ...], list[int]] = {}
        for rank, number in group.last.items():
            own = calls.loc[(rank, number)] if number else {"op": "none", "state": "", "finished": True}
            alike.setdefault((number, own["op"], own["state"], bool(own["finished"])), []).append(rank)
        names = ("number", "op", "state", "finished")
        found.append([
            {"group": group.name, "ranks": ranks_text(ranks)} | dict(zip(names, key, strict=True))
            for key, ranks in sorted(alike.items())
        ])  # fmt: skip
    found.sort(key=lambda rows: (len(rows) < 2, all(row["finished"] for row in rows)))
    return [row for rows in found for row in rows]


def ranks_text(ranks: Iterable[int]) -> str:
    """Return 'rank 3' or 'ranks 0-5, 7'."""
    ranks = list(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {format.runs(ranks)}"
