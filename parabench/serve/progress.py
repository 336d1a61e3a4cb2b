"""The progress of a session, read from its results database while a run writes to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parabench.analysis.numbers import case_type
from parabench.analysis.session import Session, select_session, select_sessions
from parabench.analysis.text import format
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S
from parabench.store.frames import records
from parabench.store.record import EXPLAIN_BLOCK, FIRST_BLOCK, UNCOUNTED, Status
from parabench.store.results import Results, load

SOON = "The results are shown as soon as a run starts."

_COLUMNS = ("id", "session_id", "case_json", "block", "status", "error", "started_utc", "wall_s")


@dataclass(frozen=True)
class Progress:
    """The progress of a session, or of both variants of an `ab`.

    Args:
        text: the progress in words.
        stamp: changes when the page would change. Empty if there is no session yet.
        session: the id of the session.
        launches: the recorded launches of this session.
        done: the planned launches that ended, of `planned`.
        going: whether more launches are expected.
        last: the launch that ended last, in words.
    """

    text: str
    stamp: str = ""
    session: str = ""
    launches: int = 0
    done: int = 0
    planned: int = 0
    going: bool = True
    last: str = ""


def read_progress(path: Path, name: str | None = None, now: datetime | None = None) -> Progress:
    """Return the progress of the session with this id or label (default: the newest).

    Raises UsageError if the file is not a results database.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return Progress(f"There is no store {path} yet. {SOON}")
    results = load(path)
    names = {*map(str, results.listed["id"].tolist()), *results.listed["label"].tolist()}
    if not names or (name is not None and name not in names):
        return Progress(f"{path} holds no session{f' {name}' if name else ''} yet. {SOON}")
    session = select_session(results, name)
    variants = [session, *_other_variants(results, session)]
    launches = records(results.of([each.id for each in variants]).launch, _COLUMNS)
    ended = [row for row in launches if row["block"] >= FIRST_BLOCK and row["status"] != Status.INTERRUPTED]
    planned = sum(each.launches_planned for each in variants)
    finished = all(each.finished_utc for each in variants) and len(ended) >= planned
    last = max(launches, key=lambda row: row["id"], default=None)
    quiet_s = None if finished or last is None else _quiet_s(last, now or datetime.now(UTC))
    stalled = quiet_s is not None and quiet_s > _patience_s(variants, launches)
    failed = sum(
        row["status"] not in (Status.OK, Status.INTERRUPTED) and row["block"] != EXPLAIN_BLOCK for row in launches
    )
    text = f"{len(ended):,} of {format.count(planned, 'launch')}"
    if finished:
        text = f"Finished: {text}"
    elif stalled and quiet_s is not None:
        text += f"; no launch has ended for {format.duration(quiet_s)}, so the run seems to have stopped"
    elif ended and len(ended) < planned:
        left_s = (planned - len(ended)) * sum(map(_wall_s, ended)) / len(ended)
        text += f", about {format.duration(left_s, 1)} left"
    finishes = sum(bool(each.finished_utc) for each in variants)
    return Progress(
        text=f"{text}. {format.count(failed, 'launch')} failed." if failed else f"{text}.",
        stamp="-".join(map(str, (session.id, len(launches), planned, finishes))),
        session=str(session.id),
        launches=sum(row["session_id"] == session.id for row in launches),
        done=len(ended),
        planned=planned,
        going=not finished and not stalled,
        last="" if last is None else _ended(last, variants),
    )


def _other_variants(results: Results, session: Session) -> list[Session]:
    """Return the session of the other variant, if `session` is one of an `ab`."""
    run = session.interleaved.get("run")
    others = [] if run is None else [at for at in results.listed["id"].tolist() if at != session.id]
    return [each for each in select_sessions(results, others) if each.interleaved.get("run") == run]


def _quiet_s(last: dict[str, Any], now: datetime) -> float:
    """Return the seconds since this launch ended."""
    return (now - datetime.fromisoformat(last["started_utc"])).total_seconds() - _wall_s(last)


def _patience_s(variants: list[Session], launches: list[dict[str, Any]]) -> float:
    """Return the time after which the driver has ended and recorded a launch that hangs."""
    deadlines = [(each.plan.get("protocol") or {}).get("deadline_s") or 0 for each in variants]
    return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * max(map(_wall_s, launches)), *deadlines)


def _wall_s(launch: dict[str, Any]) -> float:
    """Return the seconds of a launch; 0 for a log of nccl-tests, whose length is unknown."""
    return float(launch["wall_s"]) if format.known(launch["wall_s"]) else 0.0


def _ended(launch: dict[str, Any], variants: list[Session]) -> str:
    """Describe a launch and how it ended."""
    (session,) = (each for each in variants if each.id == launch["session_id"])
    case = format.one_line(case_type(session.kind).from_dict(json.loads(launch["case_json"])).label)
    block = launch["block"]
    what = f"{UNCOUNTED[block]}, {case}" if block in UNCOUNTED else f"{case}, block {block + 1}"
    how = "ok" if not format.known(launch["wall_s"]) else f"ok after {format.duration(launch['wall_s'])}"
    if launch["status"] != Status.OK:
        how = format.error_line(", ".join(filter(None, (launch["status"], launch["error"]))))
    return f"{session.name}: {what}: {how}" if len(variants) > 1 else f"{what}: {how}"
