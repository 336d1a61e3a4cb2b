"""In what sessions differ, and in what they agree: hardware, software, settings, protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from parabench.analysis.compare.across_facts import HARDWARES, NOT_RECORDED, hardware_facts
from parabench.analysis.compare.sides import session_facts
from parabench.analysis.comparison.several import Several
from parabench.analysis.environment.facts import commit
from parabench.analysis.text import format

HARDWARE, SOFTWARE = "hardware", "software"


@dataclass(frozen=True)
class Fact:
    """What each side's record says of one thing. `matters`: where it differs, it can explain another latency by
    itself."""

    kind: str
    name: str
    values: tuple[str, ...]
    matters: bool

    @property
    def differs(self) -> bool:
        """Whether two sides say different things."""
        return len(set(self.values)) > 1


def facts(of: Several) -> list[Fact]:
    """Of the machines, then of what ran on them."""
    return [*_hardware(of), *_software(of)]


def apart(told: Iterable[Fact], side: int, most: int = 3) -> str:
    """What sets a side apart in a few words: 'torch 2.14.0, commit 3f2a90c1b5d7'. The first facts that differ, those
    that can explain a latency and the commit."""
    own = [fact for fact in told if fact.differs and (fact.matters or fact.name == "commit")]
    return ", ".join(f"{fact.name} {fact.values[side]}" for fact in own[:most])


def _hardware(of: Several) -> Iterator[Fact]:
    for name, values in hardware_facts(of.sides).items():
        yield Fact(HARDWARE, name, tuple(map(format.one_line, values)), matters=name not in ("host", "OS"))


def _software(of: Several) -> Iterator[Fact]:
    sessions = [side.session for side in of.sides]
    devices = {str(device) for side in of.sides for device in side.launches["device"]}
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
