"""Compare the flight recorder dumps of several ranks: find calls that ranks did not enter or finish, or that differ.

A call has the same number on all ranks of its group (torch/distributed/flight_recorder/components/builder.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from parabench.analysis import format
from parabench.analysis.step.calls import MUTUAL
from parabench.imports.recording import Recording
from parabench.store.record import RECORDING_HANG, Finding
from parabench.store.results import records

# The most items that a sentence lists.
MOST_NAMED = 4

_HANG_ADVICE = (
    "Check ranks that did not enter or finish a call of others first, because the others wait for them. If no timeout "
    "wrote the dumps, the call may just have been running."
)
_MISMATCH_ADVICE = "Check code that differs between ranks: all ranks must make the same calls in the same order."


class _Group(NamedTuple):
    """The calls of one process group.

    - `members`: its ranks; empty if they are unknown
    - `calls`: one row per rank and call, with columns such as `number` and `rank`
    - `first`: one row per call, indexed by its number
    - `finished`: True, False, or NaN if the dump does not have the call, by number and rank
    - `last`: {rank: number of its last call, or 0}
    - `opened`: {rank: number of its first unfinished call}
    - `absent`: {rank: reason} for ranks whose calls are not in the dumps
    """

    name: str
    members: tuple[int, ...]
    # DataFrames; the labels of their rows and columns are numbers, which pandas' types do not express.
    calls: Any
    first: Any
    finished: Any
    last: dict[int, int]
    opened: dict[int, int]
    absent: dict[int, str]

    def any_finished(self, number: int) -> bool:
        """Return whether a rank has finished a call. Then all ranks have entered it."""
        return bool(self.finished.loc[number].eq(True).any())


class _Note(NamedTuple):
    """A statement about a call of a group, as a sentence and as a short phrase.

    The ranks `waiting` wait for the ranks `behind`. `made_s` is the time of the call, which sorts statements.
    """

    made_s: float
    text: str
    short: str
    behind: Sequence[int] = ()
    waiting: Sequence[int] = ()


def story(
    dumps: Sequence[Recording], calls: pd.DataFrame, case_id: str
) -> tuple[list[Finding], str | None, list[str], list[dict[str, Any]]]:
    """Return the conclusions from all dumps, whose calls have the columns CALLS and `rank`.

    A rank causes a hang if others wait for it and it does not wait, or if it has not finished a call that others have.

    Returns:
        - warnings about a hang, causes before consequences, and about calls that differ
        - the message about the first call that a rank did not enter, or `None`
        - sentences about ranks that others wait for
        - the last calls of each group, as rows of a table
    """
    groups = list(_groups(dumps, calls))
    notes = defaultdict[str, list[_Note]](list)
    for group in groups:
        for kind, note in _notes(group):
            notes[kind].append(note)
    missing, stuck, unfinished = (
        sorted(notes[kind], key=lambda note: note.made_s) for kind in ("missing", "stuck", "unfinished")
    )
    first = {note.behind[0]: note.short for note in reversed(unfinished)}
    causes, waits = _causes(missing, set(first), calls)
    hangs, entered = [], None
    if unfinished and (missing or stuck):
        places = "; ".join(f"rank {rank} in {first[rank]}" for rank in sorted(first)[:MOST_NAMED])
        hangs.append(
            f"By {'their dumps' if len(first) > 1 else 'its dump'} {ranks_text(first)} had not finished calls that "
            f"another rank of the same group had: {places}.{' '.join(['', *waits])}"
        )
        waits = []
    if missing:
        entered = f"{missing[0].text}{causes}"
        hangs.append(entered)
    if missing[1:]:
        hangs.append(f"Later calls were not entered, either: {_listed(missing[1:])}.")
    if stuck:
        hangs.append(stuck[0].text + (f" The same is true for {_listed(stuck[1:])}." if stuck[1:] else ""))
    hangs += _messages(calls[calls["message"].astype(bool)], {dump.rank for dump in dumps})
    unknown = defaultdict[str, list[str]](list)
    for note in notes["unknown"]:
        unknown[note.text].append(note.short)
    for reason, names in unknown.items():
        named = f"group{'s' * (len(names) > 1)} {format.listed(names, MOST_NAMED)}"
        waits.append(f"Waiting between ranks in {named} is unknown: {reason}.")
    findings = [Finding(RECORDING_HANG, text, _HANG_ADVICE, case_id) for text in hangs]
    findings += [
        Finding("recording_mismatch", note.text, _MISMATCH_ADVICE, case_id) for note in sorted(notes["mismatch"])
    ]
    return findings, entered, waits, _last_calls(groups)


def _listed(notes: Sequence[_Note]) -> str:
    return format.listed([note.short for note in notes], MOST_NAMED)


def _groups(dumps: Sequence[Recording], calls: pd.DataFrame) -> Iterator[_Group]:
    """Yield the groups that have calls."""
    there = {dump.rank: dump for dump in dumps}
    entries: Any = calls[~calls["message"].astype(bool)]
    known = entries["ranks"].map(lambda ranks: ranks or ())
    for (name, members), rows in entries.astype({"number": int}).groupby(["group", known], sort=False):
        absent, ranks = {}, [*dict.fromkeys(rows["rank"])]
        for rank in sorted(set(members) - set(ranks)):
            dump = there.get(rank)
            if dump is None:
                absent[rank] = "it has no dump"
            elif dump.groups.get(name) != members:
                absent[rank] = "its dump does not list the group"
            elif not (dump.calls["seq"] == 0).any():
                absent[rank] = "its recorder has dropped older calls; raise TORCH_FR_BUFFER_SIZE"
            else:
                ranks.append(rank)
        # Coalesced calls have the state of the entry `nccl:coalesced` that follows them.
        rows = rows.assign(finished=rows.groupby(["rank", "number"])["finished"].transform("last"))
        rows = rows[rows["phase"].notna()].drop_duplicates(["rank", "number"], keep="last")
        if rows.empty:
            continue
        finished = rows.pivot(index="number", columns="rank", values="finished").reindex(columns=ranks).sort_index()
        last = {rank: int(max(column.dropna().index, default=0)) for rank, column in finished.items()}
        is_open = finished.eq(False)
        opened = {rank: int(column.idxmax()) for rank, column in is_open.items() if column.any()}
        first = rows.drop_duplicates("number", keep="last").set_index("number")
        yield _Group(str(name), members, rows, first, finished, last, opened, absent)


def _notes(group: _Group) -> Iterator[tuple[str, _Note]]:
    """Yield statements about a group as (kind, note).

    - `unfinished`: a rank has not finished a call that another one has
    - `mismatch`: ranks made different calls with the same number
    - `missing`: ranks did not enter a call
    - `stuck`: all ranks entered a call, and none finished it
    - `unknown`: neither can be decided
    """

    def note(number: int, text: str, short: str = "", **ranks: Sequence[int]) -> _Note:
        made = group.first.loc[number, "made_s"]
        short = f"call {number} of group {group.name}{short}"
        return _Note(made if format.known(made) else 0.0, text, short, **ranks)

    def call(number: int) -> str:
        where = group.first.loc[number, "where"]
        called = f", called at {where}" if where else ""
        return f"Call {number} of group {group.name}, {group.first.loc[number, 'must_match']}{called},"

    for rank, number in group.opened.items():
        if group.first.loc[number, "op"] in MUTUAL and group.any_finished(number):
            yield "unfinished", note(number, "", behind=[rank])
    kinds = group.calls.groupby("number")["must_match"].nunique() > 1
    if kinds.any():
        number = int(kinds.idxmax())
        rows = group.calls[group.calls["number"] == number].sort_values("rank").groupby("must_match", sort=False)
        called = "; ".join(f"{ranks_text(calls['rank'])} called {what}" for what, calls in rows)
        yield "mismatch", note(number, f"Call {number} of group {group.name} is not the same on its ranks: {called}.")
    # The first call that some ranks did not enter. If a rank has finished it, one dump is older than the others.
    number = int(min(group.first.index[group.first.index > min(group.last.values())], default=0))
    if number and not group.any_finished(number):
        behind = sorted(rank for rank, most in group.last.items() if most < number)
        entered = sorted(group.finished.loc[number].dropna().index)
        most = max(group.last[rank] for rank in behind)
        last = f"whose last call of the group was its call {most}" if most else "whose dump holds no call of the group"
        text = (
            f"{call(number)} was entered by {ranks_text(entered)} and not by {ranks_text(behind)}, {last}; it was not "
            "over when the dumps were written."
        )
        short = f", {group.first.loc[number, 'must_match']}, by {ranks_text(behind)}"
        yield "missing", note(number, text, short, behind=behind, waiting=entered)
    elif not kinds.any():
        number = max(group.opened.values(), default=0)
        if not group.absent and group.members and [*group.opened.values()] == [number] * len(group.last):
            text = f"{call(number)} was entered by all {len(group.last)} ranks and finished on none."
            yield "stuck", note(number, text)
        elif reason := _why_unknown(group):
            yield "unknown", _Note(0.0, reason, group.name)


def _why_unknown(group: _Group) -> str:
    """Return the reason why waiting in a group is unknown; empty if no rank waits."""
    if group.absent:
        reason = next(iter(group.absent.values()))
        return f"{ranks_text(rank for rank, each in group.absent.items() if each == reason)}: {reason}"
    if not group.members:
        return "the dumps do not list its ranks"
    last = {rank: most for rank, most in group.last.items() if most}
    if len(set(last.values())) == 1 and all(group.finished.loc[most, rank] for rank, most in last.items()):
        return ""
    return "a rank has finished a call that another has not, so their dumps may be of different times"


def _causes(missing: Sequence[_Note], unfinished: set[int], calls: pd.DataFrame) -> tuple[str, list[str]]:
    """Return a sentence about the last calls of ranks that cause a hang, and sentences about ranks that others await.

    `unfinished` are ranks that have not finished a call that others have.
    """
    behind_in = Counter(rank for note in missing for rank in note.behind)
    free = sorted(behind_in.keys() - {rank for note in missing for rank in note.waiting} - unfinished)
    rows: Any = calls[calls["rank"].isin(free[:MOST_NAMED]) & ~calls["message"].astype(bool) & calls["made_s"].notna()]
    last_calls = [
        f"rank {call['rank']} called {call['must_match']} of group {call['group']}"
        f"{', at ' + call['where'] if call['where'] else ''} ({'' if call['finished'] else 'not '}finished)"
        for call in records(rows.sort_values("made_s").groupby("rank").tail(1).sort_values("rank"))
    ]
    most = max(behind_in.values(), default=1)
    needed = [rank for rank, count in behind_in.items() if count == most]
    waits = [f"Others wait for {ranks_text(needed)} in {format.count(most, 'group')}."] if most > 1 else []
    return f" Last calls in any group: {'; '.join(last_calls)}." if last_calls else "", waits


def _messages(rows: pd.DataFrame, there: Container[int | None]) -> Iterator[str]:
    """Yield one sentence about unfinished sends and recvs, if any. Messages without a partner come first.

    `there` are the ranks that have a dump.
    """
    # Batched messages have the state of `nccl:coalesced` with the same number.
    over = rows.groupby(["rank", "group", "number"])["finished"].transform("any").astype(bool)
    pending: dict[Any, Any] = dict(list(rows[~over].groupby(["rank", "op", rows["peer"].fillna(-1)], sort=False)))
    messages = []
    for (rank, op, peer), entries in pending.items():
        first = entries.loc[entries["number"].astype(int).idxmin()]
        lacks, reason, what = False, "", f"rank {rank}'s {op}"
        if peer >= 0:
            other = "recv" if op == "send" else "send"
            lacks = len(pending.get((peer, other, rank), ())) < len(entries)
            what += f" {'to' if op == 'send' else 'from'} rank {peer}"
            reason = f", which has no unfinished {other} for it" * lacks if peer in there else ", whose dump is missing"
        text = f"{what} (call {first['number']} of group {first['group']}){reason}"
        messages.append((not lacks, first["made_s"], text))
    if messages:
        texts = [text for _, _, text in sorted(messages)]
        yield f"Messages were not finished when the dumps were written: {format.listed(texts, MOST_NAMED)}."


def _last_calls(groups: Iterable[_Group]) -> list[dict[str, Any]]:
    """Return the last call of each rank in each group, one row per group and call, with the ranks as text.

    Groups whose ranks differ come first, then groups with unfinished calls.
    """
    found = []
    for group in groups:
        last = group.calls.sort_values("number").drop_duplicates("rank", keep="last").set_index("rank")
        last = last.reindex(group.last)[["number", "op", "state", "finished"]]
        none = {"number": 0, "op": "none", "state": "", "finished": True}
        last = last.astype(object).where(last["number"].notna(), pd.Series(none), axis=1)
        alike = last.reset_index().groupby(list(none))["rank"].agg(ranks_text).reset_index(name="ranks")
        found.append(records(alike.assign(group=group.name)))
    found.sort(key=lambda rows: (len(rows) < 2, all(row["finished"] for row in rows)))
    return [row for rows in found for row in rows]


def ranks_text(ranks: Iterable[int]) -> str:
    """Return 'rank 3' or 'ranks 0-5, 7'."""
    ranks = list(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {format.runs(ranks)}"
