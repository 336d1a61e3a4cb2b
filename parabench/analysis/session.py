"""Read a session of a results database: its record with parsed JSON columns, and the tables of its launches."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from parabench import json_text
from parabench.analysis.numbers import by_case, case_of, case_table, numbers
from parabench.errors import UsageError, did_you_mean
from parabench.plan.case import Case, RecordedCase
from parabench.plan.cohorts import cohorts
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import timing_of
from parabench.store.database import SessionRow
from parabench.store.record import FIRST_REPETITION, Status
from parabench.store.results import Results, records
from parabench.store.store import STORE_NAME

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """The record of a session, with parsed JSON columns.

    `interleaved` is {"run": ..., "side": "a" or "b"} for the two sessions of a `parabench ab`, otherwise empty.
    """

    id: int
    label: str | None
    suite: str
    question: str
    argv: list[str]
    seed: int
    started_utc: str
    finished_utc: str | None
    version: str
    environment: dict[str, Any]
    plan: dict[str, Any]
    interleaved: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return its label, or its number."""
        return self.label or f"session {self.id}"

    @property
    def kind(self) -> str:
        """Return what was measured: 'training', 'collectives', 'compute' (ranks alone), or 'recorded' by another
        tool."""
        return str(self.plan.get("kind", "training"))

    @property
    def day(self) -> str:
        """Return the day of its start."""
        return self.started_utc[:10]

    def known(self, *names: str) -> str | None:
        """Return a fact of its environment, such as `known("versions", "torch")`; None if it is unknown."""
        value: Any = self.environment
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return None if value is None else str(value)

    @property
    def commit(self) -> str | None:
        """Return the shortened commit of the measured project."""
        commit = self.known("git", "commit")
        return None if commit is None else commit[:12]

    @property
    def identity(self) -> tuple[str, ...]:
        """Return values that are equal for copies of a session: start, suite, host, name, variant and seed."""
        side = self.interleaved.get("side", "")
        return self.started_utc, self.suite, str(self.known("host")), self.name, side, str(self.seed)

    @property
    def judged(self) -> bool:
        """Return whether a history looks for change points in it: False for the baseline of an `ab`.

        The two variants have the same time, so their difference would look like a change.
        """
        return self.interleaved.get("side", "b") == "b"

    @property
    def timing(self) -> str:
        """Return how a session of collectives timed its calls (`collective_protocol.timing_of`)."""
        return timing_of(self.plan.get("protocol") or {})

    @property
    def launches_planned(self) -> int:
        """Return the planned number of launches without reference launches; 0 if it is unknown."""
        repetitions = self.plan.get("repetitions") or (self.plan.get("protocol") or {}).get("launches") or 0
        return len(self.plan.get("cases") or []) * int(repetitions) + sum(map(len, self.plan.get("extra") or []))

    @property
    def raced(self) -> bool:
        """Return whether racing decided how often each configuration was launched."""
        protocol = self.plan.get("protocol") or {}
        return protocol.get("launches", 0) is None and protocol.get("rounds") != 0

    @property
    def shares_launches(self) -> bool:
        """Return whether configurations were interleaved in shared launches."""
        protocol = self.plan.get("protocol") or {}
        if not (self.raced or protocol.get("rounds")) or self.interleaved:
            return False
        kind = CollectiveCase if self.kind == "collectives" else Case
        cases: list[Any] = [kind.from_dict(each) for each in self.plan.get("cases") or []]
        return any(len(each) > 1 for each in cohorts(cases))

    def require(self, kind: str, store: Path) -> None:
        """Raise UsageError if the session, in the database `store`, is of another kind."""
        if self.kind != kind:
            what = f"measured {self.kind}" if self.kind != RecordedCase.kind else "has traces or logs of other tools"
            raise UsageError(f"session {self.label or self.id} {what}, not {kind}; name one that did: {store}@SESSION")


def split(text: str) -> tuple[Path, str | None]:
    """Return the database and the session (an id or a label, or None) of `DATABASE` or `DATABASE@SESSION`.

    For a folder, it is results.db there. Raises UsageError if either is empty.
    """
    path, at, session = text, "", ""
    if not os.path.exists(text) and "@" in text:
        path, at, session = text.rpartition("@")
    if not path:
        raise UsageError(f"{text!r} does not name a results database; give the results.db of a run")
    if at and not session:
        raise UsageError(f"{text} names no session after the @; give {path}, or {path}@ with an id or a label")
    store = Path(path)
    return store / STORE_NAME if os.path.isdir(store) else store, session or None


def select_session(results: Results, session: str | int | None = None) -> Session:
    """Return the session with this id or label, or the newest one. If several have the label, the newest is returned.

    Raises UsageError with the existing sessions if there is none.
    """
    labels = dict(zip(results.listed["id"].tolist(), results.listed["label"].tolist(), strict=True))
    if not labels:
        raise UsageError(f"{results.path} holds no session; give the results.db of a run")
    chosen = [at for at in labels if session is None or str(at) == str(session)]
    chosen = chosen or [at for at, label in labels.items() if label == str(session)]
    if not chosen:
        there = ", ".join(f"{at}{'' if label is None else f' ({label})'}" for at, label in labels.items())
        hint = did_you_mean(str(session), [label for label in labels.values() if label])
        raise UsageError(f"session {session!r} is not in {results.path}; {hint}it holds {there}")
    return select_sessions(results, [max(chosen)])[0]


def select_sessions(results: Results, ids: Sequence[int]) -> list[Session]:
    """Return the sessions with these ids, in this order.

    The environment has the version of NCCL that ranks had loaded, if they reported one. If the installed wheel is
    another version, that one is `nccl_wheel`.
    """
    if not ids:
        return []
    own = results.of(ids)
    launches = own.read("launch", "instr(facts, '\"nccl_version\"')", ("session_id", "facts"))
    facts = dict(zip(launches["session_id"].tolist(), launches["facts"].tolist(), strict=True))
    found = {}
    for row in records(own.session, ("id", *SessionRow._fields)):
        where = f"of session {row['id']} of {own.path}"
        parsed = {
            name: json_text.parsed(row[name], f"{name} {where}")
            for name in ("environment", "plan", "argv", "interleaved")
        }
        environment = parsed["environment"]
        versions = environment.get("versions") or {}
        nccl = json_text.parsed(facts[row["id"]]).get("nccl_version") if row["id"] in facts else None
        if nccl not in (None, versions.get("nccl")):
            unknown = {name: why for name, why in (environment.get("unknown_versions") or {}).items() if name != "nccl"}
            parsed["environment"] = environment | {"versions": versions | {"nccl": nccl}, "unknown_versions": unknown}
            if versions.get("nccl"):
                parsed["environment"]["nccl_wheel"] = versions["nccl"]
        found[row["id"]] = Session(version=row.pop("parabench_version"), **row | parsed)
    return [found[at] for at in ids]


@dataclass(frozen=True)
class Origin:
    """The source of numbers: a session and its database.

    `at` is an argument of `parabench compare`, STORE@SESSION; `command` measured the session. `launches` is the number
    of launches, `valid` the number that counts. `finished_utc` is None if planned launches are missing.
    """

    at: str
    session: str
    suite: str
    command: str
    started_utc: str
    finished_utc: str | None
    launches: int
    valid: int


@dataclass(frozen=True)
class SessionData:
    """A training session with its tables, which are computed when they are first used and must not be changed.

    `results` has only this session (`Results.of`). `role` is its name in a comparison, such as base or candidate. The
    tables raise UsageError for a session of another kind.
    """

    results: Results
    session: Session
    role: str = ""
    _derived: dict[Callable[[SessionData], Any], Any] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Return one row per launch and configuration (`numbers.numbers`)."""
        return numbers(self.results, self.session)

    @cached_property
    def cases(self) -> pd.DataFrame:
        """Return one row per configuration (`numbers.case_table`)."""
        return case_table(self.numbers)

    @cached_property
    def cases_by_id(self) -> pd.DataFrame:
        """Return `cases` with the id of the configuration as index."""
        return self.cases.set_index("case_id")

    @cached_property
    def labels(self) -> dict[str, str]:
        """Return the label of each configuration by its id."""
        return dict(zip(self.cases["case_id"], self.cases["label"], strict=True))

    @cached_property
    def _case_texts(self) -> dict[str, str]:
        return dict(zip(self.numbers["case"], self.numbers["case_json"], strict=True))

    def case(self, case_id: str) -> Case:
        """Return a launched configuration. Raises KeyError for another."""
        return case_of(self._case_texts[case_id])

    @cached_property
    def step_times(self) -> dict[str, float]:
        """Return the step time of each configuration that has one, in seconds, by its id."""
        return {str(case): float(step_s) for case, step_s in self.cases_by_id["step_time_s"].dropna().items()}

    @cached_property
    def counted(self) -> pd.DataFrame:
        """Return the launches whose numbers count."""
        return self.numbers[self.numbers["counted"]]

    @cached_property
    def timed(self) -> pd.DataFrame:
        """Return the launches whose step times are compared."""
        return self.numbers[self.numbers["timed"]]

    @property
    def of_launch(self) -> pd.DataFrame:
        """Return `launch_id`, `case_id` and `label` of the launches that count, for detail tables."""
        return self.counted[["launch_id", "case", "label"]].rename(columns={"case": "case_id"})

    @cached_property
    def by_case(self) -> dict[str, pd.Series[float]]:
        """Return the compared step times of each configuration that has some, in seconds (`numbers.by_case`)."""
        return by_case(self.timed, "step_s")

    @cached_property
    def repetitions(self) -> dict[str, pd.DataFrame]:
        """Return the launches of each configuration, except the reference launch."""
        own = self.numbers[self.numbers["repetition"] >= FIRST_REPETITION]
        return {str(case): launches for case, launches in own.groupby("case", sort=False)}

    @cached_property
    def facts(self) -> Mapping[int, dict[str, Any]]:
        """Return the facts that ranks reported, by launch id."""
        pairs = zip(self.numbers["launch_id"].tolist(), self.numbers["facts"].tolist(), strict=True)
        return {at: json_text.parsed(text) if isinstance(text, str) else {} for at, text in pairs}

    def rows(self, table: str) -> pd.DataFrame:
        """Return the rows of a detail table (`sample`, `collective`, `span`, ...) for launches that count."""
        frame: pd.DataFrame = getattr(self.results, table)
        return frame[frame["launch_id"].isin(self.counted["launch_id"])]

    @property
    def why_none(self) -> str:
        """Return why no launch counts, as the beginning of a sentence."""
        if not self.repetitions:
            return "No launch was recorded"
        ended_well = any((own["status"] == Status.OK).any() for own in self.repetitions.values())
        return "No launch has a step of known length" if ended_well else "No launch succeeded"

    def why_missing(self, case: str) -> str:
        """Return why a configuration was not launched in this session."""
        if case in self.skipped:
            return f"skipped in {self.session.name}: {self.skipped[case]}"
        if case in self.planned:
            return f"planned in {self.session.name}, but not launched"
        return f"not measured in {self.session.name}"

    @cached_property
    def skipped(self) -> dict[str, str]:
        """Return {id: reason} of the configurations that the plan skipped."""
        skipped = self.session.plan.get("skipped") or []
        return {Case.from_dict(entry["case"]).id: str(entry["reason"]) for entry in skipped}

    @cached_property
    def planned(self) -> dict[str, Case]:
        """Return the configurations of the plan by id, including skipped ones."""
        plan = self.session.plan
        fields = [*(plan.get("cases") or []), *(entry["case"] for entry in plan.get("skipped") or [])]
        return {case.id: case for case in map(Case.from_dict, fields)}

    @cached_property
    def origin(self) -> Origin:
        """Return the source of its numbers."""
        # A path may have bytes that are not text.
        path = os.fsencode(self.results.path).decode(errors="replace")
        return Origin(
            at=f"{path}@{self.session.id}",
            session=self.session.name,
            suite=self.session.suite,
            command=shlex.join(self.session.argv),
            started_utc=self.session.started_utc,
            finished_utc=self.session.finished_utc,
            launches=int(self.cases["n_launches"].sum()),
            valid=len(self.counted),
        )

    def once(self, derive: Callable[[SessionData], T]) -> T:
        """Return `derive(self)`, which is computed in the first call."""
        if derive not in self._derived:
            found = derive(self)
            # A copied table has one block per type, so rows are selected up to seven times as fast.
            self._derived[derive] = found.copy() if isinstance(found, pd.DataFrame) else found
        made: T = self._derived[derive]
        return made


def session_data(results: Results, session: str | int | None = None) -> SessionData:
    """Return a session of a database, the newest by default. Raises UsageError if it does not exist."""
    return data_of(results, select_session(results, session))


def data_of(results: Results, session: Session, role: str = "") -> SessionData:
    """Return the tables of a session of a database; `role` is its name in a comparison."""
    return SessionData(results.of([session.id]), session, role)
