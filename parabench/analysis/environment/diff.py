"""Find the differences between sessions in hardware, software, settings and protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.facts import gpu_rows, machine_pairs
from parabench.analysis.environment.nodes import cluster_text, node_records, nodes_compared, several_nodes
from parabench.analysis.session import Session, SessionData
from parabench.errors import UsageError, did_you_mean
from parabench.machine import accelerator
from parabench.plan.protocol import BY_STEPS_OR_TIME

_HARDWARE = ("devices", "driver", "cpu", "cores", "cluster", "nodes", "host", "os")
# The facts that alone can explain another step time: always, and by device.
_ALWAYS_MATTERS = {"torch", "cuda", "cluster", "nodes"}
_MATTERS = {accelerator.TYPE: {"devices", "driver", "nccl"}, "cpu": {"cpu", "cores"}}


@dataclass(frozen=True)
class Difference:
    """A fact that differs between two sessions, with its text in each of them.

    `matters` means that this difference alone can explain a different step time.
    """

    name: str
    base: str
    candidate: str
    matters: bool


def _facts(session: Session) -> dict[str, str | None]:
    """Return {name: text} of the facts that could explain a difference; None for facts that were not recorded."""
    environment, protocol = session.environment, session.plan.get("protocol") or {}
    gpus = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    shared = "shared by interleaved configurations" if session.shares_launches else "each of one configuration"
    amounts = {
        name: protocol.get(name) if protocol.get(seconds) is None else f"{protocol[seconds]:g} s"
        for name, seconds in BY_STEPS_OR_TIME.items()
    }
    return {
        "devices": "; ".join(gpus) or "none",
        "driver": session.known("driver", "version"),
        "cpu": session.known("cpu"),
        "cores": session.known("cores"),
        "cluster": cluster_text(environment),
        "nodes": nodes_compared(environment) or "one",
        **{name: session.known("versions", name) for name in sorted(environment.get("versions") or {})},
        "host": session.known("host"),
        "python": session.known("python"),
        "os": session.known("os"),
        "parabench": session.version,
        "commit": session.commit,
        **{name: str(value) for name, value in sorted((environment.get("env") or {}).items())},
        "launches": shared if protocol else None,
        **{name: None if amount is None else str(amount) for name, amount in amounts.items()},
    }


def session_differences(base: Session, candidate: Session, devices: Collection[str]) -> Iterator[Difference]:
    """Yield the differences in facts that both sessions recorded.

    `devices` ('cpu', 'cuda') are what the sessions computed on. They determine which differences matter.
    """
    own, new = _facts(base), _facts(candidate)
    variables = {name for session in (base, candidate) for name in session.environment.get("env") or {}}
    matters = _ALWAYS_MATTERS.union(*(_MATTERS[each] for each in devices))
    for name in own | new:
        old, other = (each.get(name, "not set" if name in variables else None) for each in (own, new))
        if old is not None and other is not None and old != other:
            yield Difference(name, old, other, name in matters)


def differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Yield the differences between two sessions, with the devices of their numbers."""
    devices = {str(device) for side in (base, candidate) for device in side.numbers["device"]}
    return session_differences(base.session, candidate.session, devices)


def software_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Yield the differences between two sessions in versions, settings and protocol, without hardware."""
    return (each for each in differences(base, candidate) if each.name not in _HARDWARE)


def hardware_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Yield the differences between the machines of two sessions, in more detail than `differences`."""
    environments = [side.session.environment for side in (base, candidate)]
    several, devices = any(map(several_nodes, environments)), all(each.get("gpus") for each in environments)
    own, new = (_machine_facts(each, several, devices) for each in environments)
    for name in own | new:
        old, other = (format.one_line(each.get(name, "not recorded")) for each in (own, new))
        if old != other:
            yield Difference(name, old, other, matters=name not in ("host", "OS"))


def _machine_facts(environment: Mapping[str, Any], several: bool, devices: bool) -> dict[str, str]:
    """Return {name: text} of the facts of a machine.

    `several` means that a machine has several nodes, and `devices` that both machines have devices.
    """
    facts = {"cluster": cluster_text(environment), "nodes": nodes_compared(environment) or "one"} if several else {}
    facts |= dict(machine_pairs(environment))
    if not devices:
        return {name: text for name, text in facts.items() if name not in ("driver", "newest CUDA it runs")}
    for name, *values in gpu_rows(environment)[1]:
        if name not in ("Name", "Memory"):  # `machine_pairs` has them
            facts[f"device: {name}"] = "; ".join(dict.fromkeys(values))
    matrix = (environment.get("links") or {}).get("matrix") or []
    if links := {str(cell) for i, row in enumerate(matrix) for j, cell in enumerate(row) if i != j and cell}:
        facts["links between devices"] = ", ".join(sorted(links))
    return facts


def changes(before: SessionData, after: SessionData, devices: Iterable[str]) -> tuple[Difference, ...]:
    """Return the changes from one session to the next: first the ones that matter, then the others.

    The commit is last, because it nearly always changes.
    """
    found = session_differences(before.session, after.session, set(devices))
    return tuple(sorted(found, key=lambda change: (not change.matters, change.name == "commit")))


def check_alike(found: list[Difference], changed: tuple[str, ...], option: str = "--changed") -> None:
    """Raise UsageError if a difference matters and is not in `changed`, the names that the user gave with `option`.

    It is also raised if `changed` has a name that does not differ.
    """
    known = [difference.name for difference in found]
    for name in changed:
        if name not in known:
            there = ", ".join(known) or "nothing"
            hint = did_you_mean(name, known)
            raise UsageError(f"{option} {name}: it is the same on both variants; {hint}what differs is {there}")
    others = [difference for difference in found if difference.matters and difference.name not in changed]
    if others:
        listed = "; ".join(f"{each.name} ({each.base} in base, {each.candidate} in candidate)" for each in others)
        names = " ".join(f"{option} {each.name}" for each in others)
        raise UsageError(
            f"the variants differ in what decides a step time: {listed}; measure both on one machine, or judge that "
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
