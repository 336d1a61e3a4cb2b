"""Which of a store's sessions is read, with its JSON columns parsed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from parabench.errors import UsageError
from parabench.plan.collective_protocol import timing_of
from parabench.store.store import Results


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
        """What was measured: 'training' or 'collectives'."""
        return str(self.plan.get("kind", "training"))

    @property
    def timing(self) -> str:
        """How a session of collectives timed its calls, as `collective_protocol.timing_of` has it."""
        return timing_of(self.plan.get("protocol") or {})

    @property
    def launches_planned(self) -> int:
        """How many launches its plan has, the reference apart; 0 where it does not tell."""
        blocks = (self.plan.get("protocol") or {}).get("launches") or 0
        return len(self.plan.get("cases") or []) * int(blocks) + sum(map(len, self.plan.get("extra") or []))

    def require(self, kind: str, instead: str) -> None:
        """Raise UsageError, with what to do instead, when the session is of another kind."""
        if self.kind != kind:
            raise UsageError(f"session {self.label or self.id} measured {self.kind}, not {kind}; {instead}")


def select_session(results: Results, session: str | int | None = None) -> Session:
    """The session with that id or label (the newest of that label), by default the newest of the store.

    Raises UsageError when there is none, with those that are there.
    """
    table = results.session
    if table.empty:
        raise UsageError(f"{results.path} holds no session; give the results.db of a run")
    if session is None:
        chosen = table
    else:
        chosen = table[table["id"].astype(str) == str(session)]
        if chosen.empty:
            chosen = table[table["label"] == str(session)]
    if chosen.empty:
        there = ", ".join(
            f"{i} ({label})" if isinstance(label, str) else str(i)
            for i, label in zip(table["id"], table["label"], strict=True)
        )
        raise UsageError(f"session {session!r} is not in {results.path}; it holds {there}")
    row: dict[Any, Any] = chosen.sort_values("id").iloc[-1].to_dict()
    return Session(
        id=int(row["id"]),
        label=_text(row["label"]),
        suite=str(row["suite"]),
        question=str(row["question"]),
        argv=[str(word) for word in json.loads(row["argv"])],
        seed=int(row["seed"]),
        started_utc=str(row["started_utc"]),
        finished_utc=_text(row["finished_utc"]),
        version=str(row["parabench_version"]),
        environment=_with_loaded(json.loads(row["environment"]) or {}, _loaded_nccl(results, int(row["id"]))),
        plan=json.loads(row["plan"]) or {},
        interleaved=json.loads(_text(row["interleaved"]) or "{}"),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _loaded_nccl(results: Results, session: int) -> str | None:
    """The version of NCCL that ranks of the session had loaded, the last that any told; None where none did."""
    told = results.launch.loc[results.launch["session_id"] == session, "facts"].dropna()
    told = told[told.str.contains('"nccl_version"', regex=False)]
    return json.loads(told.iloc[-1]).get("nccl_version") if len(told) else None


def _with_loaded(environment: dict[str, Any], nccl: str | None) -> dict[str, Any]:
    """The environment with the NCCL that ranks had loaded for that of the installed wheel, which stays beside it as
    `nccl_wheel` where it is another."""
    versions = environment.get("versions") or {}
    if nccl is None or versions.get("nccl") == nccl:
        return environment
    unknown = {name: why for name, why in (environment.get("unknown_versions") or {}).items() if name != "nccl"}
    changed = environment | {"versions": versions | {"nccl": nccl}, "unknown_versions": unknown}
    return changed | {"nccl_wheel": versions["nccl"]} if versions.get("nccl") else changed
