"""How far a session is, by its store alone: read in a moment, while a run writes to it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from parabench.analysis.stored import case_type
from parabench.analysis.text import format
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S
from parabench.serve.text import last_words, progress_words
from parabench.store import json_text
from parabench.store.database import check_file, not_readable, open_to_read
from parabench.store.record import FIRST_BLOCK
from parabench.store.schema import DONE, NOT_WELL


@dataclass(frozen=True)
class Standing:
    """How far a session is; of one side of an `ab`, how far both are.

    `stamp` changes with everything that a page shows; it is empty where there is no session yet. `launches` are all
    that are recorded of the one session; `done` of the `planned` ones are not to be run again; `failed` failed
    . `left_s` is what the rest will take, in seconds, by the launches that there are; None is unknown. `going` is
    False where the session is complete, or where no launch came when one must have. `said` tells all of it, `last` what
    ran last.
    """

    said: str
    stamp: str = ""
    session: str = ""
    launches: int = 0
    done: int = 0
    planned: int = 0
    failed: int = 0
    left_s: float | None = None
    going: bool = True
    last: str = ""


def standing(path: Path, session: str | None, now: datetime | None = None) -> Standing:
    """How far the session of that id or label is, by default the newest. Where there is none yet, `said` says so.

    Raises UsageError for a file that is no store.
    """
    soon = "The results will show as soon as a run has begun it."
    try:
        if path.exists():
            check_file(path)
        if not path.exists() or not path.stat().st_size:
            return Standing(f"There is no store {path} yet. {soon}")
        with open_to_read(path) as db:
            db.row_factory = sqlite3.Row
            db.execute("BEGIN")  # one moment of the store, however it grows meanwhile
            found = _find(db, path, session)
            if found:
                return _standing(db, path, found, now or datetime.now(UTC))
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        raise not_readable(path, error) from error
    return Standing(f"{path} holds {'no session' if session is None else f'no session {session}'} yet. {soon}")


@dataclass(frozen=True)
class _Planned:
    """A session, and what of its plan tells how far it is: `n_cases` in `blocks` blocks, then the `extra` ones."""

    id: int
    label: str | None
    began: str
    finished: str | None
    n_cases: int
    blocks: int
    extra: list[list[str]]
    deadline_s: float | None

    @property
    def launches(self) -> int:
        return self.n_cases * self.blocks + sum(self.again.values())

    @property
    def again(self) -> Counter[str]:
        """In how many extra blocks each case is."""
        return Counter(case for block in self.extra for case in block)


# What is asked of a plan, each by the query that finds it: all of a plan is too much to read again and again.
_OF_PLAN = {
    "n_cases": "coalesce(json_array_length(plan, '$.cases'), 0)",
    "blocks": "coalesce(json_extract(plan, '$.blocks'), json_extract(plan, '$.protocol.launches'), 0)",
    "deadline_s": "json_extract(plan, '$.protocol.deadline_s')",
}


def _find(db: sqlite3.Connection, path: Path, session: str | None) -> list[_Planned]:
    """The session first, then the other side of its ab."""
    rows = db.execute("SELECT id, label FROM session ORDER BY id DESC").fetchall()
    chosen = [at for at, _ in rows if session is None or str(at) == session]
    chosen = (chosen or [at for at, label in rows if label == session])[:1]
    run = "json_extract(interleaved, '$.run')"
    tied = [db.execute(f"SELECT {run} FROM session WHERE id = ?", (at,)).fetchone()[0] for at in chosen]
    if tied and tied[0] is not None:  # else no other session's texts are looked at
        chosen += [at for (at,) in db.execute(f"SELECT id FROM session WHERE {run} = ? AND id != ?", (*tied, *chosen))]
    return [_planned(db, path, at) for at in chosen]


def _planned(db: sqlite3.Connection, path: Path, session: int) -> _Planned:
    query = (
        f"SELECT id, label, started_utc, finished_utc, {', '.join(_OF_PLAN.values())},"
        " json_extract(plan, '$.extra') FROM session WHERE id = ?"
    )
    number, label, began, finished, *of_plan, extra = db.execute(query, (session,)).fetchone()
    told = dict(zip(_OF_PLAN, of_plan, strict=True))
    again = json_text.parsed(extra or "[]")
    return _Planned(number, label, began, finished, extra=again, **told)


def _standing(db: sqlite3.Connection, path: Path, found: list[_Planned], now: datetime) -> Standing:
    ids = [each.id for each in found]
    where = f"session_id IN ({', '.join('?' * len(ids))})"
    done, failed, launches, newest, longest_s = db.execute(
        f"SELECT coalesce(sum(block >= {FIRST_BLOCK} AND {DONE}), 0), coalesce(sum({NOT_WELL}), 0),"
        f" count(*) FILTER (WHERE session_id = {ids[0]}), max(id), max(wall_s) FROM launch WHERE {where}",
        ids,
    ).fetchone()
    findings = db.execute(f"SELECT count(*) FROM finding WHERE {where}", ids).fetchone()[0]
    planned = sum(each.launches for each in found)
    finished = all(each.finished for each in found) and done >= planned
    quiet_s = _quiet_s(db, newest, now)
    patience_s = max(LEAST_DEADLINE_S, DEADLINE_FACTOR * (longest_s or 0), *(each.deadline_s or 0 for each in found))
    # Later than that the driver has ended a launch that hangs, and recorded it.
    stalled = not finished and quiet_s is not None and quiet_s > patience_s
    left_s = _left_s(db, found)
    shown = [
        path.stat().st_ino,
        newest,
        findings,
        *((each.id, each.label, each.finished, each.launches) for each in found),
    ]
    return Standing(
        said=progress_words(done, planned, failed, left_s, finished, quiet_s if stalled else None),
        stamp=sha256(json.dumps(shown).encode()).hexdigest()[:16],
        session=str(ids[0]),
        launches=launches,
        done=done,
        planned=planned,
        failed=failed,
        left_s=left_s,
        going=not finished and not stalled,
        last="" if newest is None else _last(db, path, newest, len(found) > 1),
    )


def _quiet_s(db: sqlite3.Connection, launch: int | None, now: datetime) -> float | None:
    """Seconds since that launch ended."""
    if launch is None:
        return None
    began, wall_s = db.execute("SELECT started_utc, wall_s FROM launch WHERE id = ?", (launch,)).fetchone()
    try:
        return (now - datetime.fromisoformat(began)).total_seconds() - float(wall_s)
    except (ValueError, TypeError):  # no moment, or one without a time zone
        return None


def _left_s(db: sqlite3.Connection, found: Iterable[_Planned]) -> float | None:
    """What is left will take, each launch as long as its case's did so far, or as all did on average."""
    seen, left = [], []
    for each in found:
        again = each.again
        rows = db.execute(
            "SELECT case_id, count(*), avg(wall_s) FROM launch"
            f" WHERE session_id = ? AND block >= {FIRST_BLOCK} AND {DONE} AND wall_s IS NOT NULL GROUP BY case_id",
            (each.id,),
        ).fetchall()
        seen += [(n, mean) for _, n, mean in rows]
        left += [(max(0, each.blocks + again[case] - n), mean) for case, n, mean in rows]
        left.append((each.blocks * (each.n_cases - len(rows)), None))
    if not seen:
        return None
    overall = sum(n * mean for n, mean in seen) / sum(n for n, _ in seen)
    return float(sum(n * (overall if mean is None else mean) for n, mean in left))


def _last(db: sqlite3.Connection, path: Path, launch: int, sided: bool) -> str:
    """What ran last, and how it ended."""
    row = db.execute(
        "SELECT case_json, json_extract(plan, '$.kind') AS kind, block, status, error, wall_s, label"
        " FROM launch JOIN session ON session.id = session_id WHERE launch.id = ?",
        (launch,),
    ).fetchone()
    case = case_type(row["kind"]).from_dict(json_text.parsed(row["case_json"]))
    side = f"{format.one_line(row['label'])}: " if sided and row["label"] else ""
    return side + last_words(case.label, row["block"], row["status"], row["error"], row["wall_s"])
