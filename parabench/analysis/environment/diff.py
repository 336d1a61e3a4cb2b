"""Differences between sessions: hardware, software, settings and protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.facts import commit, gpu_rows, machine_pairs
from parabench.analysis.environment.nodes import cluster_said, node_records, nodes_compared, several_nodes
from parabench.analysis.session import Session, SessionData
from parabench.errors import UsageError, did_you_mean
from parabench.machine import accelerator
from parabench.plan.protocol import BY_STEPS_OR_TIME

HARDWARE, SOFTWARE = "hardware", "software"
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Fact:
    """A fact with its value in each session; `None` if it was not recorded. If it `matters`, a difference in it alone
    can explain another step time."""

    kind: str
    name: str
    values: tuple[Any, ...]
    matters: bool

    @property
    def differs(self) -> bool:
        """Return whether two sessions have different values."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Difference:
    """A fact that differs between two sessions, or has changed since the session before (`base`)."""

    name: str
    base: str
    candidate: str
    matters: bool

    def __str__(self) -> str:
        return f"{self.name} differs: {self.base} in base, {self.candidate} in candidate"


def session_facts(sessions: Sequence[Session], devices: set[str]) -> Iterator[Fact]:
    """Yield the facts that could explain a difference between sessions that computed on `devices` (cpu, cuda or both).

    These matter: torch and CUDA; on CUDA, the devices, their driver and NCCL; on the CPU, its name and cores; the nodes
    of a cluster.
    """
    on_cuda, on_cpu = accelerator.TYPE in devices, "cpu" in devices

    def fact(kind: str, name: str, say: Callable[[Session], Any], matters: bool = False) -> Fact:
        return Fact(kind, name, tuple(map(say, sessions)), matters)

    def known(*names: str) -> Callable[[Session], str | None]:
        return lambda session: session.known(*names)

    def names_in(group: str) -> list[str]:
        return sorted({name for session in sessions for name in session.environment.get(group) or {}})

    yield fact(HARDWARE, "devices", lambda of: _device_kinds(of.environment), on_cuda)
    yield fact(HARDWARE, "driver", known("driver", "version"), on_cuda)
    yield fact(HARDWARE, "cpu", known("cpu"), on_cpu)
    yield fact(HARDWARE, "cores", known("cores"), on_cpu)
    if any(several_nodes(session.environment) for session in sessions):
        yield fact(HARDWARE, "cluster", lambda of: cluster_said(of.environment), True)
        yield fact(HARDWARE, "nodes", lambda of: nodes_compared(of.environment) or "one", True)
    for name in names_in("versions"):
        matters = name in ("torch", "cuda") or (name == "nccl" and on_cuda)
        yield fact(SOFTWARE, name, known("versions", name), matters)
    yield fact(HARDWARE, "host", known("host"))
    yield fact(SOFTWARE, "python", known("python"))
    yield fact(HARDWARE, "os", known("os"))
    yield fact(SOFTWARE, "parabench", lambda of: of.version)
    yield fact(SOFTWARE, "commit", lambda of: of.commit)
    for name in names_in("env"):
        yield fact(SOFTWARE, name, partial(_variable, name))
    yield fact(SOFTWARE, "launches", _launches)
    for name, seconds in BY_STEPS_OR_TIME.items():
        yield fact(SOFTWARE, name, partial(_amount, name, seconds))


def _launches(session: Session) -> str | None:
    if not session.plan.get("protocol"):
        return None
    return "shared by cases that take turns" if session.shares_launches else "each of one case"


def _variable(name: str, session: Session) -> str:
    return session.known("env", name) or "not set"


def _amount(name: str, timed: str, session: Session) -> Any:
    """Return a number of steps, or the time that they fill; `None` if neither was recorded."""
    protocol = session.plan.get("protocol") or {}
    return protocol.get(name) if protocol.get(timed) is None else f"{protocol[timed]:g} s"


def _device_kinds(environment: Mapping[str, Any], most: int | None = None) -> str:
    kinds = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    return format.listed(kinds, most=most or len(kinds)) or "none"


def _of_both(facts: Iterable[Fact]) -> Iterator[Difference]:
    for fact in facts:
        if fact.differs and None not in fact.values:
            base, candidate = map(str, fact.values)
            yield Difference(fact.name, base, candidate, fact.matters)


def session_differences(base: Session, candidate: Session, devices: set[str]) -> Iterator[Difference]:
    """Yield the differences between two sessions that computed on `devices`, in facts that both recorded."""
    return _of_both(session_facts((base, candidate), devices))


def differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Yield the differences between two sessions, in facts that both recorded."""
    return session_differences(base.session, candidate.session, _devices((base, candidate)))


def software_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Yield the differences in versions, settings and protocol."""
    facts = session_facts((base.session, candidate.session), _devices((base, candidate)))
    return _of_both(fact for fact in facts if fact.kind == SOFTWARE)


def hardware_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Yield the differences between two machines."""
    return _of_both(machine_facts((base, candidate)))


def changes(before: SessionData, after: SessionData, devices: Iterable[str]) -> tuple[Difference, ...]:
    """Return the changes from one session to the next: first those that matter, last the commit, which nearly always
    changes."""
    found = session_differences(before.session, after.session, set(devices))
    return tuple(sorted(found, key=lambda change: (not change.matters, change.name == "commit")))


def _devices(sides: Iterable[SessionData]) -> set[str]:
    return {str(device) for side in sides for device in side.numbers["device"]}


def check_alike(found: list[Difference], changed: tuple[str, ...], option: str = "--changed") -> None:
    """Raise UsageError if something that matters differs and was not named with `option`."""
    known = [difference.name for difference in found]
    for name in changed:
        if name not in known:
            there = ", ".join(known) or "nothing"
            hint = did_you_mean(name, known)
            raise UsageError(f"{option} {name}: it is the same on both sides; {hint}what differs is {there}")
    unmeant = [difference for difference in found if difference.matters and difference.name not in changed]
    if unmeant:
        told = [f"{each.name} ({each.base} in base, {each.candidate} in candidate)" for each in unmeant]
        names = " ".join(f"{option} {each.name}" for each in unmeant)
        raise UsageError(
            f"the sides differ in what decides a step time: {format.listed(told, most=len(told))}; measure both on one "
            f"machine, or judge that difference with {names}, or compare machines with `parabench compare "
            "--across-hardware`"
        )


def hardware_name(side: SessionData) -> str:
    """Return the hardware of a session: '8 x NVIDIA A100', '16 cores of Some CPU', '2 nodes, node 0 with ...'."""
    environment, devices = side.session.environment, set(side.numbers["device"])
    named = []
    if accelerator.TYPE in devices:
        known = environment.get("gpus")
        named.append(_device_kinds(environment, most=4) if known else "CUDA devices that were not recorded")
    if "cpu" in devices:
        cores, name = environment.get("cores"), environment.get("cpu") or "a CPU that was not recorded"
        named.append(f"{format.count(cores, 'core')} of {name}" if cores else str(name))
    count = len(node_records(environment))
    return (f"{count} nodes, node 0 with " if count > 1 else "") + " and ".join(named)


def machine_facts(sides: Sequence[SessionData]) -> Iterator[Fact]:
    """Yield the facts of the machines, as their records have them; devices only if each machine has some."""
    environments = [side.session.environment for side in sides]
    several, devices = any(map(several_nodes, environments)), all(each.get("gpus") for each in environments)
    told = []
    for environment in environments:
        facts = dict(machine_pairs(environment))
        if several:
            facts = {"cluster": cluster_said(environment), "nodes": nodes_compared(environment) or "one"} | facts
        told.append(facts | _device_facts(environment) if devices else facts)
    for name in dict.fromkeys(name for facts in told for name in facts):
        if devices or name not in ("driver", "newest CUDA it runs"):
            values = tuple(format.one_line(facts.get(name, NOT_RECORDED)) for facts in told)
            yield Fact(HARDWARE, name, values, matters=name not in ("host", "OS"))


def _device_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return limits and states of the devices; names and memory are in `machine_pairs`."""
    facts = {
        f"device: {name}": "; ".join(dict.fromkeys(values))
        for name, *values in gpu_rows(environment)[1]
        if name not in ("Name", "Memory")
    }
    matrix = (environment.get("links") or {}).get("matrix") or []
    between = {str(cell) for i, row in enumerate(matrix) for j, cell in enumerate(row) if i != j and cell}
    if between:
        facts["links between devices"] = ", ".join(sorted(between))
    return facts


def facts(sides: Sequence[SessionData]) -> list[Fact]:
    """Return the facts of the machines, then of the software, as text."""
    found = list(machine_facts(sides))
    for fact in session_facts([side.session for side in sides], _devices(sides)):
        values = fact.values
        if fact.name == "commit":
            gits = (side.session.environment.get("git") for side in sides)
            values = tuple(commit(git) if isinstance(git, dict) else None for git in gits)
        if fact.kind == SOFTWARE and any(value is not None for value in values):
            text = tuple(NOT_RECORDED if value is None else format.one_line(value) for value in values)
            found.append(replace(fact, values=text))
    return found


def apart(told: Iterable[Fact], side: int, most: int = 3) -> str:
    """Return the differences of a session in a few words: 'torch 2.14.0, commit 3f2a90c1b5d7'."""
    own = [fact for fact in told if fact.differs and (fact.matters or fact.name == "commit")]
    return ", ".join(f"{fact.name} {fact.values[side]}" for fact in own[:most])
