"""Differences between sessions: hardware, software, settings and protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

_HARDWARE_FACTS = ("devices", "driver", "cpu", "cores", "cluster", "nodes", "host", "os")
# The facts that alone can explain another step time: always, on CUDA, and on the CPU.
_MATTERS = {"": {"torch", "cuda", "cluster", "nodes"}, accelerator.TYPE: {"devices", "driver", "nccl"}}
_MATTERS["cpu"] = {"cpu", "cores"}


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

    _MATTERS has those that matter.
    """
    told = [_told(session) for session in sessions]
    variables = {name for session in sessions for name in session.environment.get("env") or {}}
    matters = set().union(*(_MATTERS[each] for each in ("", *devices)))
    for name in dict.fromkeys(name for each in told for name in each):
        values = tuple(each.get(name, "not set" if name in variables else None) for each in told)
        yield Fact(HARDWARE if name in _HARDWARE_FACTS else SOFTWARE, name, values, name in matters)


def _told(session: Session) -> dict[str, Any]:
    """Return the facts of a session by name; None if one was not recorded."""
    environment, protocol = session.environment, session.plan.get("protocol") or {}
    gpus = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    shared = "shared by cases that take turns" if session.shares_launches else "each of one case"
    amounts = {
        name: protocol.get(name) if protocol.get(seconds) is None else f"{protocol[seconds]:g} s"
        for name, seconds in BY_STEPS_OR_TIME.items()
    }
    return {
        "devices": "; ".join(gpus) or "none",
        "driver": session.known("driver", "version"),
        "cpu": session.known("cpu"),
        "cores": session.known("cores"),
        "cluster": cluster_said(environment),
        "nodes": nodes_compared(environment) or "one",
        **{name: session.known("versions", name) for name in sorted(environment.get("versions") or {})},
        "host": session.known("host"),
        "python": session.known("python"),
        "os": session.known("os"),
        "parabench": session.version,
        "commit": session.commit,
        **{name: str(value) for name, value in sorted((environment.get("env") or {}).items())},
        "launches": shared if protocol else None,
        **amounts,
    }


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
    return (each for each in differences(base, candidate) if each.name not in _HARDWARE_FACTS)


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
        told = "; ".join(f"{each.name} ({each.base} in base, {each.candidate} in candidate)" for each in unmeant)
        names = " ".join(f"{option} {each.name}" for each in unmeant)
        raise UsageError(
            f"the sides differ in what decides a step time: {told}; measure both on one machine, or judge that "
            f"difference with {names}, or compare machines with `parabench compare --across-hardware`"
        )


def hardware_name(side: SessionData) -> str:
    """Return the hardware of a session: '8 x NVIDIA A100', '16 cores of Some CPU', '2 nodes, node 0 with ...'."""
    environment, devices = side.session.environment, set(side.numbers["device"])
    named = []
    if accelerator.TYPE in devices:
        gpus = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
        named.append(format.listed(gpus, most=4) or "CUDA devices that were not recorded")
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
        cluster = {"cluster": cluster_said(environment), "nodes": nodes_compared(environment) or "one"}
        facts = (cluster if several else {}) | dict(machine_pairs(environment))
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
    return facts | ({"links between devices": ", ".join(sorted(between))} if between else {})


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
            found.append(Fact(SOFTWARE, fact.name, text, fact.matters))
    return found


def apart(told: Iterable[Fact], side: int, most: int = 3) -> str:
    """Return the differences of a session in a few words: 'torch 2.14.0, commit 3f2a90c1b5d7'."""
    own = [fact for fact in told if fact.differs and (fact.matters or fact.name == "commit")]
    return ", ".join(f"{fact.name} {fact.values[side]}" for fact in own[:most])
