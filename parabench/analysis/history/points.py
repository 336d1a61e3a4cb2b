"""The sessions of one store or several in order of time: what each ran on, and the number of each of its launches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from parabench.analysis.environment.diff import session_differences
from parabench.analysis.session import SHORT_COMMIT, SessionData, session_data
from parabench.analysis.tables import numbered, step_times, unique_labels
from parabench.plan.case import Case
from parabench.store.record import FIRST_BLOCK
from parabench.store.results import Results


@dataclass(frozen=True)
class Change:
    """What is recorded of a session and was otherwise in one before. `matters`: it can explain another latency."""

    name: str
    before: str
    after: str
    matters: bool

    def __str__(self) -> str:
        return f"{self.name} changed from {self.before} to {self.after}"

    def arrow(self) -> str:
        """The same where there is little room: 'torch 2.12 → 2.13'."""
        return f"{self.name} {self.before} → {self.after}"


def changes(before: SessionData, after: SessionData, devices: Iterable[str]) -> tuple[Change, ...]:
    """What changed from one session to another that computed on `devices`; what decides a latency first, the commit of
    the project under test last, for it nearly always does."""
    found = [
        Change(each.name, each.base, each.candidate, each.matters)
        if each.name != "commit"
        else Change("commit", each.base[:SHORT_COMMIT], each.candidate[:SHORT_COMMIT], False)
        for each in session_differences(before.session, after.session, set(devices))
    ]
    return tuple(sorted(found, key=lambda change: (not change.matters, change.name == "commit")))


def visits_of(stores: Sequence[Results]) -> list[SessionData]:
    """All sessions of trainings, the oldest first. One that several stores hold (a copy that was measured on) is in it
    once, as the store with most launches of it has it."""
    once: dict[tuple[str, ...], tuple[int, SessionData]] = {}
    for results in stores:
        launches = results.launch["session_id"].value_counts()
        for number in results.session["id"]:
            visit = session_data(results, int(number))
            if visit.session.kind != "training":
                continue
            key = visit.session.identity
            count = int(launches.get(visit.session.id, 0))
            if key not in once or once[key][0] < count:
                once[key] = count, visit
    visits = [visit for _, visit in once.values()]
    return sorted(visits, key=lambda visit: (visit.session.started_utc, visit.session.interleaved.get("side", "")))


def numbers_of(visits: Sequence[SessionData]) -> pd.DataFrame:
    """One row a launch of the visits' blocks: `visit` (its place), `suite`, `case_id`, `case_json`, `label` (unique
    among cases), `device`, `launch_id`, `block`, `status`, and `launch_step_s` as in `tables.launch_table`;
    `step_time_s` is the step time that the launch's case has in its session, NaN where it has none. The samples of each
    store are gone through once."""
    tables = []
    for results in {id(visit.results): visit.results for visit in visits}.values():
        own = {visit.session.id: place for place, visit in enumerate(visits) if visit.results is results}
        gpus = {number: bool(visits[place].session.environment.get("gpus")) for number, place in own.items()}
        launches = results.launch[results.launch["session_id"].isin(own) & (results.launch["block"] >= FIRST_BLOCK)]
        table = numbered(launches.rename(columns={"id": "launch_id"}), results.steps, gpus)
        tables.append(table.assign(visit=launches["session_id"].map(own).to_numpy()))
    table = pd.concat(tables, ignore_index=True)
    stored = table.drop_duplicates("case_id")
    cases = {
        str(case): Case.from_dict(json.loads(text))
        for case, text in zip(stored["case_id"], stored["case_json"], strict=True)
    }
    seconds = {
        (visit, case): step_time_s
        for visit, group in table.groupby("visit")
        for case, step_time_s in step_times(group).items()
    }
    keys = zip(table["visit"], table["case_id"], strict=True)
    table = table.assign(
        suite=[visits[place].session.suite for place in table["visit"]],
        label=table["case_id"].map(unique_labels(cases)).astype(object),
        step_time_s=[seconds.get(key, np.nan) for key in keys],
    )
    return table[list(_COLUMNS)]


_COLUMNS = (
    "visit", "suite", "case_id", "case_json", "label", "device", "launch_id", "block", "status", "launch_step_s",
    "step_time_s",
)  # fmt: skip
