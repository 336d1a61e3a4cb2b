"""Everything that is known of a session of trainings, gathered once for all who look at it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from parabench.analysis.session import Session
from parabench.analysis.tables import case_table, counted, launch_table
from parabench.store.record import FIRST_BLOCK, Status
from parabench.store.store import Results

T = TypeVar("T")


@dataclass(frozen=True)
class Evidence:
    """A session with its tables. `launches` is its launch table, `cases` its case table."""

    session: Session
    results: Results
    launches: pd.DataFrame
    cases: pd.DataFrame
    _derived: dict[Callable[[Evidence], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, derive: Callable[[Evidence], T]) -> T:
        """What `derive` makes of this, made once however many ask; nobody may change it."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        made: T = self._derived[derive]
        return made

    @cached_property
    def facts(self) -> dict[int, dict[str, Any]]:
        """What ranks told of each launch, by its id; nobody may change it."""
        pairs = zip(self.launches["launch_id"], self.launches["facts"], strict=True)
        return {int(at): json.loads(text) if isinstance(text, str) else {} for at, text in pairs}

    @cached_property
    def good(self) -> pd.DataFrame:
        """The launches that count."""
        return counted(self.launches)

    @property
    def why_none(self) -> str:
        """Why no launch counts, where none does, as the beginning of a sentence."""
        own = self.launches[self.launches["block"] >= FIRST_BLOCK]
        if own.empty:
            return "No launch was recorded"
        ended_well = (own["status"] == Status.OK).any()
        return "No launch has a step of known length" if ended_well else "No launch ended well"

    def rows(self, table: str) -> pd.DataFrame:
        """The store's rows of one table (`sample`, `collective`, `span`, ...) that belong to launches that count."""
        frame: pd.DataFrame = getattr(self.results, table)
        return frame[frame["launch_id"].isin(self.good["launch_id"])]


def evidence(results: Results, session: Session) -> Evidence:
    """Gather. Raises UsageError for a session that trained nothing."""
    launches = launch_table(results, session)
    return Evidence(session, results, launches, case_table(launches))
