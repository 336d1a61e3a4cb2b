"""A session of a store: its record with the JSON columns parsed, and the tables that are made of its launches."""

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
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import FIRST_BLOCK, Status
from parabench.store.results import Results, records
from parabench.store.schema import SessionRow
from parabench.store.store import STORE_NAME

T = TypeVar("T")

# Of a commit that many digits tell it from others.
SHORT_COMMIT = 12


@dataclass(frozen=True)
class Session:
    """One `parabench run`, its JSON columns parsed. `interleaved` is empty, or {"run": ..., "side": "a" or "b"} of the
    two sessions that took turns in one `parabench ab`."""

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
        """How it is called: its label, or its number."""
        return self.label or f"session {self.id}"

    @property
    def kind(self) -> str:
        """What was measured: 'training', 'collectives', 'compute', what ranks do alone, or 'recorded', by somebody
        else."""
        return str(self.plan.get("kind", "training"))

    @property
    def day(self) -> str:
        """The day on which it began."""
        return self.started_utc[:10]

    def known(self, *names: str) -> str | None:
        """What its environment says, such as `known("versions", "torch")`; None where it says nothing."""
        value: Any = self.environment
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return None if value is None else str(value)

    @property
    def commit(self) -> str | None:
        """The commit of the project under test, shortened."""
        commit = self.known("git", "commit")
        return None if commit is None else commit[:SHORT_COMMIT]

    @property
    def identity(self) -> tuple[str, ...]:
        """What no two sessions have in common: the millisecond in which they began, where, and what for."""
        side = self.interleaved.get("side", "")
        return self.started_utc, self.suite, str(self.known("host")), self.name, side, str(self.seed)

    @property
    def judged(self) -> bool:
        """Whether a history seeks change points in it. Two that took turns have the same time, and an order of theirs
        would make a change of their difference: side b counts, for what is on trial is what comes next."""
        return self.interleaved.get("side", "b") == "b"

    @property
    def timing(self) -> str:
        """How a session of collectives timed its calls, as `collective_protocol.timing_of` has it."""
        from parabench.plan.collective_protocol import timing_of

        return timing_of(self.plan.get("protocol") or {})

    @property
    def launches_planned(self) -> int:
        """How many launches its plan has, the reference apart; 0 where it does not tell."""
        blocks = self.plan.get("blocks") or (self.plan.get("protocol") or {}).get("launches") or 0
        return len(self.plan.get("cases") or []) * int(blocks) + sum(map(len, self.plan.get("extra") or []))

    @property
    def raced(self) -> bool:
        """Whether its measurements decided how often each case was launched."""
        protocol = self.plan.get("protocol") or {}
        return protocol.get("launches", 0) is None and protocol.get("rounds") != 0

    @property
    def shares_launches(self) -> bool:
        """Whether it has cases that take turns in launches that they share."""
        protocol = self.plan.get("protocol") or {}
        if not (self.raced or protocol.get("rounds")) or self.interleaved:
            return False
        from parabench.plan.cohorts import cohorts

        kind = CollectiveCase if self.kind == "collectives" else Case
        cases: list[Any] = [kind.from_dict(each) for each in self.plan.get("cases") or []]
        return any(len(each) > 1 for each in cohorts(cases))

    def require(self, kind: str, store: Path) -> None:
        """Raise UsageError when the session, of that store, is of another kind."""
        if self.kind != kind:
            what = f"measured {self.kind}" if self.kind != RecordedCase.kind else "holds others' recordings"
            raise UsageError(f"session {self.label or self.id} {what}, not {kind}; name one that did: {store}@SESSION")


def split(text: str) -> tuple[Path, str | None]:
    """Return the database and the session (an id or a label, or None) of `DATABASE` or `DATABASE@SESSION`.

    A folder stands for its results.db. Raises UsageError if either is empty.
    """
    path, at, session = text, "", ""
    if not os.path.exists(text) and "@" in text:
        path, at, session = text.rpartition("@")
    if not path:
        raise UsageError(f"{text!r} names no store; give the results.db of a run")
    if at and not session:
        raise UsageError(f"{text} names no session after the @; give {path}, or {path}@ with an id or a label")
    store = Path(path)
    return store / STORE_NAME if os.path.isdir(store) else store, session or None


def select_session(results: Results, session: str | int | None = None) -> Session:
    """The session with that id or label (the newest of that label), by default the newest of the store.

    Raises UsageError when there is none, with those that are there.
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
    """The sessions with these ids, in their order; they are read at once."""
    if not ids:
        return []
    own = results.of(ids)
    rows = {row["id"]: row for row in records(own.session, ("id", *SessionRow._fields))}
    loaded = _loaded_nccl(own)
    return [_session(own, rows[at], loaded.get(at)) for at in ids]


def _session(results: Results, row: dict[str, Any], nccl: str | None) -> Session:
    texts = {name: row[name] for name in ("environment", "plan", "argv", "interleaved")}
    where = f"of session {row['id']} of {results.path}"
    fields = row | {name: json_text.parsed(text, f"{name} {where}") for name, text in texts.items()}
    environment = _with_loaded(fields.pop("environment"), nccl)
    return Session(version=fields.pop("parabench_version"), environment=environment, **fields)


def holds(results: Results, kind: str) -> bool:
    """Whether a store has a session of that kind, told by its plan alone."""
    return bool(results.whole_store.of_kind(kind))


def _loaded_nccl(results: Results) -> dict[int, str | None]:
    """By session, the version of NCCL that its ranks had loaded, the last that any told; without those of none."""
    rows = results.read("launch", "instr(facts, '\"nccl_version\"')", ("session_id", "facts"))
    last = dict(zip(rows["session_id"].tolist(), rows["facts"].tolist(), strict=True))
    return {session: json_text.parsed(facts).get("nccl_version") for session, facts in last.items()}


def _with_loaded(environment: dict[str, Any], nccl: str | None) -> dict[str, Any]:
    """The environment with the NCCL that ranks had loaded for that of the installed wheel, which stays beside it as
    `nccl_wheel` where it is another."""
    versions = environment.get("versions") or {}
    if nccl is None or versions.get("nccl") == nccl:
        return environment
    unknown = {name: why for name, why in (environment.get("unknown_versions") or {}).items() if name != "nccl"}
    changed = environment | {"versions": versions | {"nccl": nccl}, "unknown_versions": unknown}
    return changed | {"nccl_wheel": versions["nccl"]} if versions.get("nccl") else changed


@dataclass(frozen=True)
class Origin:
    """Where the numbers of a session lie, so that whoever reads an answer finds its rows. `at` is what
    `parabench compare` takes, STORE@SESSION; `command` is what measured it.

    `launches` are as many as cases have in `numbers.case_table`, `valid` those that count; `finished_utc` is None for
    a session that was planned to go on.
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
    """A session of trainings with its tables, each made when it is first asked for; nobody may change them.

    `results` are its store's, of the session alone (`Results.of`). `role` is what it is called beside others: base,
    candidate. The tables raise UsageError for a session that trained nothing.
    """

    results: Results
    session: Session
    role: str = ""

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """One row per launch and configuration (`numbers.numbers`)."""
        return numbers(self.results, self.session)

    @cached_property
    def cases(self) -> pd.DataFrame:
        """One row per configuration (`numbers.case_table`)."""
        return case_table(self.numbers)

    @cached_property
    def cases_by_id(self) -> pd.DataFrame:
        """The same, by the id of the case."""
        return self.cases.set_index("case_id")

    @cached_property
    def labels(self) -> dict[str, str]:
        """What each case is called, by its id."""
        return dict(zip(self.cases["case_id"], self.cases["label"], strict=True))

    @cached_property
    def _case_texts(self) -> dict[str, str]:
        return dict(zip(self.numbers["case"], self.numbers["case_json"], strict=True))

    def case(self, case_id: str) -> Case:
        """A case of which there is a launch, as it was launched. Raises KeyError for another."""
        return case_of(self._case_texts[case_id])

    @cached_property
    def step_times(self) -> dict[str, float]:
        """The step time of each case of which a launch counts, in seconds, by its id."""
        return {str(case): float(step_s) for case, step_s in self.cases_by_id["step_time_s"].dropna().items()}

    @cached_property
    def counted(self) -> pd.DataFrame:
        """The launches whose numbers count."""
        return self.numbers[self.numbers["counted"]]

    @cached_property
    def timed(self) -> pd.DataFrame:
        """The launches whose step times are compared."""
        return self.numbers[self.numbers["timed"]]

    @property
    def of_launch(self) -> pd.DataFrame:
        """`launch_id`, `case_id` and `label` of the launches that count, for detail tables."""
        return self.counted[["launch_id", "case", "label"]].rename(columns={"case": "case_id"})

    @cached_property
    def by_case(self) -> dict[str, pd.Series[float]]:
        """The step times that are compared, in seconds, of each configuration that has some (`numbers.by_case`)."""
        return by_case(self.timed, "step_s")

    @cached_property
    def repetitions(self) -> dict[str, pd.DataFrame]:
        """The launches of each configuration, except the reference launch."""
        return {str(case): own for case, own in self._own.groupby("case", sort=False)}

    @property
    def _own(self) -> pd.DataFrame:
        return self.numbers[self.numbers["repetition"] >= FIRST_BLOCK]

    @cached_property
    def facts(self) -> Mapping[int, dict[str, Any]]:
        """What ranks told of each launch, by its id."""
        pairs = zip(self.numbers["launch_id"].tolist(), self.numbers["facts"].tolist(), strict=True)
        return {at: json_text.parsed(text) if isinstance(text, str) else {} for at, text in pairs}

    def rows(self, table: str) -> pd.DataFrame:
        """The store's rows of one table (`sample`, `collective`, `span`, ...) that belong to launches that count."""
        frame: pd.DataFrame = getattr(self.results, table)
        return frame[frame["launch_id"].isin(self.counted["launch_id"])]

    @property
    def why_none(self) -> str:
        """Why no launch counts, where none does, as the beginning of a sentence."""
        if self._own.empty:
            return "No launch was recorded"
        ended_well = (self._own["status"] == Status.OK).any()
        return "No launch has a step of known length" if ended_well else "No launch succeeded"

    def why_missing(self, case: str) -> str:
        """Why a case has no launch here."""
        if case in self.skipped:
            return f"skipped in {self.session.name}: {self.skipped[case]}"
        if case in self.planned:
            return f"planned in {self.session.name}, but not launched"
        return f"not measured in {self.session.name}"

    @cached_property
    def skipped(self) -> dict[str, str]:
        """{case id: the reason} of the cases that the plan could not run here."""
        skipped = self.session.plan.get("skipped") or []
        return {Case.from_dict(entry["case"]).id: str(entry["reason"]) for entry in skipped}

    @cached_property
    def planned(self) -> dict[str, Case]:
        """The cases of the plan by id, also those that it could not run here."""
        plan = self.session.plan
        fields = [*(plan.get("cases") or []), *(entry["case"] for entry in plan.get("skipped") or [])]
        return {case.id: case for case in map(Case.from_dict, fields)}

    @cached_property
    def origin(self) -> Origin:
        """Where the numbers lie."""
        # A path may hold bytes that are no text.
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
        """What `derive` makes of this, made once however many ask."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        made: T = self._derived[derive]
        return made

    @cached_property
    def _derived(self) -> dict[Callable[[SessionData], Any], Any]:
        return {}


def session_data(results: Results, session: str | int | None = None) -> SessionData:
    """A session (default: the newest) of a store. Raises UsageError for no such session."""
    return data_of(results, select_session(results, session))


def data_of(results: Results, session: Session, role: str = "") -> SessionData:
    """A session that is selected."""
    return SessionData(results.of([session.id]), session, role)
