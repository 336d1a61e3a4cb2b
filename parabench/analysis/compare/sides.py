"""The two sides of a comparison: which session of which store, and in what they differ besides the code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parabench.analysis.environment.node_facts import nodes_compared
from parabench.analysis.environment.nodes import cluster_said, several
from parabench.analysis.session import Session, SessionData, select_session
from parabench.analysis.tables import LAUNCH_NUMBERS
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.plan.protocol import BY_STEPS_OR_TIME
from parabench.store.record import Finding
from parabench.store.results import Results, load
from parabench.store.store import split


def read_side(text: str, role: str) -> SessionData:
    """The side that `text` names: a store, or `store@session`, by id or label; a folder stands for its results.db.

    Raises UsageError when there is no such store or session, or it trained nothing.
    """
    path, session = split(text)
    return side_of(load(path, LAUNCH_NUMBERS), session, role)


def read_sides(base: str, candidate: str) -> tuple[SessionData, SessionData]:
    """Both sides, base and candidate; a store that both are in is read once."""
    (old, before), (new, after) = split(base), split(candidate)
    results = load(old, LAUNCH_NUMBERS)
    other = results if new.resolve() == old.resolve() else load(new, LAUNCH_NUMBERS)
    return side_of(results, before, "base"), side_of(other, after, "candidate")


def side_of(results: Results, session: str | int | None = None, role: str = "base") -> SessionData:
    """A session (default: the newest) of results that are loaded. Raises UsageError, as `read_side` does."""
    chosen = select_session(results, session)
    chosen.require("training", f"name one that did: {results.path}@SESSION")
    return SessionData(results, chosen, role)


def interleaved(base: SessionData, candidate: SessionData) -> bool:
    """Whether both took turns in one run, so that what drifted, drifted for both."""
    own, other = base.session.interleaved, candidate.session.interleaved
    return bool(own) and own.get("run") == other.get("run") and own.get("side") != other.get("side")


def unfinished(base: SessionData, candidate: SessionData) -> Iterator[Finding]:
    """A finding for each side whose session was to go on."""
    for side in (base, candidate):
        if side.session.finished_utc is None:
            yield Finding(
                "unfinished",
                f"The session of {side.role} is not finished: more launches were planned.",
                "Finish it with --resume, and compare again.",
            )


@dataclass(frozen=True)
class Difference:
    """What is not the same on both sides. `matters`: it can explain another latency by itself."""

    name: str
    base: str
    candidate: str
    matters: bool

    def __str__(self) -> str:
        return f"{self.name} differs: {self.base} in base, {self.candidate} in candidate"


def differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """All that differs between two sides and could explain a difference; what an older record lacks is none.

    What matters: torch, CUDA; on CUDA the devices, their driver, NCCL; on the CPU its name and cores.
    """
    devices = {str(device) for side in (base, candidate) for device in side.launches["device"]}
    yield from session_differences(base.session, candidate.session, devices)


def session_differences(base: Session, candidate: Session, devices: set[str]) -> Iterator[Difference]:
    """The same of two sessions that computed on `devices`: cpu, cuda or both."""
    for name, (values, matters) in session_facts((base, candidate), devices).items():
        if values[0] != values[1] and None not in values:
            yield Difference(name, str(values[0]), str(values[1]), matters)


def session_facts(sessions: Sequence[Session], devices: set[str]) -> dict[str, tuple[list[Any], bool]]:
    """{name: (its value in each session, None where it was not recorded; whether it matters)} of all that could explain
    a difference between sessions that computed on `devices`."""
    on_cuda, on_cpu = "cuda" in devices, "cpu" in devices
    environments = [session.environment for session in sessions]
    versions = [environment.get("versions") or {} for environment in environments]
    protocols = [session.plan.get("protocol") or {} for session in sessions]
    found: dict[str, tuple[list[Any], bool]] = {
        "devices": ([_devices(environment) for environment in environments], on_cuda),
        "driver": ([(environment.get("driver") or {}).get("version") for environment in environments], on_cuda),
        "cpu": ([environment.get("cpu") for environment in environments], on_cpu),
        "cores": ([environment.get("cores") for environment in environments], on_cpu),
    }
    if any(map(several, environments)):
        found["cluster"] = [cluster_said(environment) for environment in environments], True
        found["nodes"] = [nodes_compared(environment) or "one" for environment in environments], True
    for name in sorted({name for each in versions for name in each}):
        matters = name in ("torch", "cuda") or (name == "nccl" and on_cuda)
        found[name] = [each.get(name) for each in versions], matters
    for name in ("host", "python", "os"):
        found[name] = [environment.get(name) for environment in environments], False
    found["parabench"] = [session.version for session in sessions], False
    found["commit"] = [(environment.get("git") or {}).get("commit") for environment in environments], False
    for name in sorted({name for environment in environments for name in environment.get("env") or {}}):
        found[name] = [(environment.get("env") or {}).get(name, "not set") for environment in environments], False
    for name, timed in BY_STEPS_OR_TIME.items():
        found[name] = [_amount(protocol, name, timed) for protocol in protocols], False
    return found


def _amount(protocol: dict[str, Any], name: str, timed: str) -> Any:
    """A number of steps, or the time that they fill; None where neither was recorded."""
    seconds = protocol.get(timed)
    return protocol.get(name) if seconds is None else f"{seconds:g} s"


def check_alike(found: list[Difference], changed: tuple[str, ...], option: str = "--changed") -> None:
    """Raise UsageError when something that matters differs and is not what the user set out to judge with `option`."""
    known = [difference.name for difference in found]
    for name in changed:
        if name not in known:
            there = ", ".join(known) or "nothing"
            raise UsageError(f"{option} {name}: it is the same on both sides; what differs is {there}")
    unmeant = [difference for difference in found if difference.matters and difference.name not in changed]
    if unmeant:
        said = format.listed(
            (f"{each.name} ({each.base} in base, {each.candidate} in candidate)" for each in unmeant), most=len(unmeant)
        )
        names = " ".join(f"{option} {each.name}" for each in unmeant)
        raise UsageError(
            f"the sides differ in what decides a latency: {said}; measure both on one machine, or judge that "
            f"difference with {names}, or compare machines with `parabench compare --across-hardware`"
        )


def _devices(environment: dict[str, Any]) -> str:
    kinds = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    return format.listed(kinds, most=len(kinds)) or "none"
