"""A check and its outcome. Free of torch, which takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Verdict(StrEnum):
    """How a check ended. `not run` is not a failure: the device or library lacks the feature, or time ran out."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The observation of a check as a text, with its numbers."""

    text: str
    verdict: Verdict
    numbers: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def judged(cls, text: str, passed: bool, **numbers: Any) -> Outcome:
        return cls(text, Verdict.PASSED if passed else Verdict.FAILED, numbers)

    @classmethod
    def not_run(cls, reason: str) -> Outcome:
        return cls(reason, Verdict.NOT_RUN)


class CheckFailed(Exception):
    """The text of a failed check."""


@dataclass(frozen=True, slots=True)
class Target:
    """The first device of a type, `cuda` or `cpu`, with its name and memory as torch reports them."""

    type: str
    name: str
    memory_bytes: int | None = None

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu") if self.is_cpu else torch.device(self.type, 0)

    @property
    def is_cpu(self) -> bool:
        """Return whether this is a rehearsal, which judges no speed."""
        return self.type == "cpu"


REHEARSAL = Target("cpu", "cpu")


Run = Callable[[Target], Outcome]


@dataclass(frozen=True, slots=True)
class Check:
    """One property that must hold.

    `limit_s` ends a check that hangs. A `rehearsed` check also runs on the CPU. A check with `holds_gpu` uses CUDA in
    its own process. The others only start processes that do. They need a process without a CUDA context, because a GPU
    in exclusive mode admits one process. `environment` is set for the process of the check.
    """

    name: str
    expected: str
    limit_s: float
    run: Run
    rehearsed: bool = True
    holds_gpu: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def outcome(self, target: Target) -> Outcome:
        """Run the check. CheckFailed becomes its outcome."""
        try:
            return self.run(target)
        except CheckFailed as why:
            return Outcome.judged(str(why), False)


def check(name: str, expected: str, limit_s: float, **options: Any) -> Callable[[Run], Check]:
    """Make a function a check; `options` are further fields of `Check`."""
    return lambda run: Check(name, expected, limit_s, run, **options)
