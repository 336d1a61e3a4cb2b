"""In what sessions differ, and in what they agree: hardware, software, settings, protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parabench.analysis.environment.facts import commit, gpu_rows, machine_pairs
from parabench.analysis.environment.nodes import cluster_said, node_records, nodes_compared, several_nodes
from parabench.analysis.session import SHORT_COMMIT, Session, SessionData
from parabench.analysis.text import format
from parabench.errors import UsageError, did_you_mean
from parabench.machine import accelerator
from parabench.plan.protocol import BY_STEPS_OR_TIME


@dataclass(frozen=True)
class Difference:
    """What is not the same on both sides, or was otherwise in the session before (`base`). `matters`: it can explain
    another step time by itself."""

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
    devices = {str(device) for side in (base, candidate) for device in side.numbers["device"]}
    yield from session_differences(base.session, candidate.session, devices)


def session_differences(base: Session, candidate: Session, devices: set[str]) -> Iterator[Difference]:
    """The same of two sessions that computed on `devices`: cpu, cuda or both."""
    for name, (values, matters) in session_facts((base, candidate), devices).items():
        if values[0] != values[1] and None not in values:
            yield Difference(name, str(values[0]), str(values[1]), matters)


def changes(before: SessionData, after: SessionData, devices: Iterable[str]) -> tuple[Difference, ...]:
    """What changed from one session to another that computed on `devices`; what decides a step time first, the commit
    of the project under test last, for it nearly always does."""
    found = [
        each
        if each.name != "commit"
        else replace(each, base=each.base[:SHORT_COMMIT], candidate=each.candidate[:SHORT_COMMIT], matters=False)
        for each in session_differences(before.session, after.session, set(devices))
    ]
    return tuple(sorted(found, key=lambda change: (not change.matters, change.name == "commit")))


def session_facts(sessions: Sequence[Session], devices: set[str]) -> dict[str, tuple[list[Any], bool]]:
    """{name: (its value in each session, None where it was not recorded; whether it matters)} of all that could explain
    a difference between sessions that computed on `devices`."""
    on_cuda, on_cpu = accelerator.TYPE in devices, "cpu" in devices
    environments = [session.environment for session in sessions]
    versions = [environment.get("versions") or {} for environment in environments]
    protocols = [session.plan.get("protocol") or {} for session in sessions]
    found: dict[str, tuple[list[Any], bool]] = {
        "devices": ([_device_kinds(environment) for environment in environments], on_cuda),
        "driver": ([(environment.get("driver") or {}).get("version") for environment in environments], on_cuda),
        "cpu": ([environment.get("cpu") for environment in environments], on_cpu),
        "cores": ([environment.get("cores") for environment in environments], on_cpu),
    }
    if any(map(several_nodes, environments)):
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
    found["launches"] = [_launches(session) for session in sessions], False
    for name, timed in BY_STEPS_OR_TIME.items():
        found[name] = [_amount(protocol, name, timed) for protocol in protocols], False
    return found


def _launches(session: Session) -> str | None:
    """Whether cases shared them, which decides what the number of a launch is made of; None where no plan tells."""
    if not session.plan.get("protocol"):
        return None
    return "shared by cases that take turns" if session.shares_launches else "each of one case"


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
            hint = did_you_mean(name, known)
            raise UsageError(f"{option} {name}: it is the same on both sides; {hint}what differs is {there}")
    unmeant = [difference for difference in found if difference.matters and difference.name not in changed]
    if unmeant:
        said = format.listed(
            (f"{each.name} ({each.base} in base, {each.candidate} in candidate)" for each in unmeant), most=len(unmeant)
        )
        names = " ".join(f"{option} {each.name}" for each in unmeant)
        raise UsageError(
            f"the sides differ in what decides a step time: {said}; measure both on one machine, or judge that "
            f"difference with {names}, or compare machines with `parabench compare --across-hardware`"
        )


def _device_kinds(environment: dict[str, Any]) -> str:
    kinds = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    return format.listed(kinds, most=len(kinds)) or "none"


# What `differences` tells and the table of hardware tells better.
HARDWARES = ("devices", "driver", "cpu", "cores", "host", "os", "cluster", "nodes")
# What `machine_pairs` tells only of machines with devices.
_DEVICES = ("driver", "newest CUDA it runs")
NOT_RECORDED = "not recorded"


def hardware_name(side: SessionData) -> str:
    """What a side's cases ran on: '8 x NVIDIA A100', '16 cores of Some CPU', '2 nodes, node 0 with 8 x NVIDIA A100'."""
    environment, devices = side.session.environment, set(side.numbers["device"])
    said = []
    if accelerator.TYPE in devices:
        kinds = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
        said.append(format.listed(kinds, most=4) or "CUDA devices that were not recorded")
    if "cpu" in devices:
        cores, name = environment.get("cores"), environment.get("cpu") or "a CPU that was not recorded"
        said.append(f"{format.count(cores, 'core')} of {name}" if cores else str(name))
    count = len(node_records(environment))
    return (f"{count} nodes, node 0 with " if count > 1 else "") + " and ".join(said)


def hardware_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """What the records say of two machines and is not the same."""
    for name, values in hardware_facts((base, candidate)).items():
        if values[0] != values[1]:
            yield Difference(name, values[0], values[1], matters=name != "host")


def hardware_facts(sides: Sequence[SessionData]) -> dict[str, list[str]]:
    """{name: what each side's record says of it}."""
    environments = [side.session.environment for side in sides]
    told = [dict(machine_pairs(environment)) for environment in environments]
    if any(map(several_nodes, environments)):
        told = [_nodes(environment) | facts for environment, facts in zip(environments, told, strict=True)]
    if all(environment.get("gpus") for environment in environments):  # else there is nothing to hold them against
        told = [facts | _device_facts(environment) for facts, environment in zip(told, environments, strict=True)]
    else:
        told = [{name: facts[name] for name in facts if name not in _DEVICES} for facts in told]
    names = dict.fromkeys(name for facts in told for name in facts)
    return {name: [facts.get(name, NOT_RECORDED) for facts in told] for name in names}


def _nodes(environment: Mapping[str, Any]) -> dict[str, str]:
    """How many nodes there are, and whether they are alike: all other facts are node 0's."""
    return {"cluster": cluster_said(environment), "nodes": nodes_compared(environment) or "one"}


def software_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Versions, settings and protocol that are not the same."""
    return (each for each in differences(base, candidate) if each.name not in HARDWARES)


def _device_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Limits and states of the devices, those of each kind once; name and memory are in `machine_pairs`."""
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


HARDWARE, SOFTWARE = "hardware", "software"


@dataclass(frozen=True)
class Fact:
    """What each side's record says of one thing. `matters`: where it differs, it can explain another step time by
    itself."""

    kind: str
    name: str
    values: tuple[str, ...]
    matters: bool

    @property
    def differs(self) -> bool:
        """Whether two sides say different things."""
        return len(set(self.values)) > 1


def facts(sides: Sequence[SessionData]) -> list[Fact]:
    """Of the machines, then of what ran on them."""
    return [*_hardware(sides), *_software(sides)]


def apart(told: Iterable[Fact], side: int, most: int = 3) -> str:
    """What sets a side apart in a few words: 'torch 2.14.0, commit 3f2a90c1b5d7'. The first facts that differ, those
    that can explain a step time and the commit."""
    own = [fact for fact in told if fact.differs and (fact.matters or fact.name == "commit")]
    return ", ".join(f"{fact.name} {fact.values[side]}" for fact in own[:most])


def _hardware(sides: Sequence[SessionData]) -> Iterator[Fact]:
    for name, values in hardware_facts(sides).items():
        yield Fact(HARDWARE, name, tuple(map(format.one_line, values)), matters=name not in ("host", "OS"))


def _software(sides: Sequence[SessionData]) -> Iterator[Fact]:
    sessions = [side.session for side in sides]
    devices = {str(device) for side in sides for device in side.numbers["device"]}
    for name, (values, matters) in session_facts(sessions, devices).items():
        if name in HARDWARES:
            continue
        said = [format.one_line(value) if value is not None else NOT_RECORDED for value in values]
        if name == "commit":
            said = [_commit(session.environment.get("git")) for session in sessions]
        if said.count(NOT_RECORDED) < len(said):
            yield Fact(SOFTWARE, name, tuple(said), matters)


def _commit(git: object) -> str:
    return commit(git) if isinstance(git, dict) else NOT_RECORDED
