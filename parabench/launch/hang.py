"""Which collective a launch that hangs is stuck in, and who did not call it: from every rank's flight recorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Missing:
    """The first collective of a group that some ranks wait in, and those of the group that did not call it."""

    operation: str
    number: int
    group: tuple[int, ...]
    waiting: tuple[int, ...]
    absent: tuple[int, ...]

    def __str__(self) -> str:
        who = f"{_ranks(self.absent)} {'has' if len(self.absent) == 1 else 'have'} not called"
        return (
            f"{who} {self.operation} number {self.number} of the group of {_ranks(self.group)}, in which "
            f"{_ranks(self.waiting)} {'waits' if len(self.waiting) == 1 else 'wait'}"
        )


def missing(answers: Mapping[int, Mapping[str, Any]]) -> list[Missing]:
    """What is missing in each group, groups with the fewest absent ranks first; `answers` are `probes.hang`'s by rank.

    A rank that did not answer at all is absent nowhere: what it called is not known.
    """
    found = []
    groups = {
        (name, tuple(told["ranks"])): None for each in answers.values() for name, told in each.get("groups", {}).items()
    }
    for name, ranks in groups:
        told = {rank: _of(answers[rank], name, ranks) for rank in ranks if "groups" in answers.get(rank, {})}
        first = min((each["pending"][0][0] for each in told.values() if each["pending"]), default=None)
        if first is None:
            continue
        waiting = {rank: op for rank, each in told.items() for number, op in each["pending"] if number == first}
        absent = tuple(rank for rank, each in told.items() if each["last"] < first)
        if absent:
            operation = next(iter(waiting.values()))
            found.append(Missing(operation, first, ranks, tuple(sorted(waiting)), absent))
    return sorted(found, key=lambda each: (len(each.absent), each.group))


def in_words(answer: Mapping[str, Any]) -> str:
    """What one rank's flight recorder has that is not over, in a line; empty where there is nothing to say."""
    said = []
    for told in answer.get("groups", {}).values():
        pending = [f"{operation} {number}" for number, operation in told["pending"]] + list(told["messages"])
        if pending:
            said.append(f"{', '.join(pending)} of the group of {_ranks(told['ranks'])}")
    return "not over: " + "; ".join(said) if said else ""


def _of(answer: Mapping[str, Any], name: str, ranks: Sequence[int]) -> Mapping[str, Any]:
    """What a rank has of a group; nothing where it called none of its collectives, or has another by that name."""
    told: Mapping[str, Any] = answer["groups"].get(name, {})
    return told if told.get("ranks") == list(ranks) else {"last": 0, "pending": []}


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
