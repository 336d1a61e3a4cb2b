"""What a check is, and how one is run in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import torch

# A line of a check's process that begins so holds its result; all others are what libraries print.
MARK = "parabench-check: "
# What of a failed process is shown.
LAST_LINES = 3


class Verdict(StrEnum):
    """How a check ended. `not run`: this device or library has no such thing; that is no failure."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check found, in words, and the numbers behind them."""

    text: str
    verdict: Verdict
    numbers: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def judged(cls, text: str, passed: bool, **numbers: Any) -> Seen:
        return cls(text, Verdict.PASSED if passed else Verdict.FAILED, numbers)

    @classmethod
    def not_run(cls, why: str) -> Seen:
        return cls(why, Verdict.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold. `run` gets the device; `limit_s` ends its process. `rehearsed`: the CPU has it too."""

    name: str
    expected: str
    limit_s: float
    run: Callable[[torch.device], Seen]
    rehearsed: bool = False


def run_here(check: Check, device: torch.device) -> None:
    """Run the check in this process, and print what it found for the process that waits."""
    print(MARK + json.dumps(asdict(check.run(device))), flush=True)


def run_apart(check: Check, device: torch.device) -> Seen:
    """Run the check in a fresh process; one that fails, is killed or exceeds its limit is a failed check."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--here", check.name, "--device", device.type]
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=check.limit_s
        )
    except subprocess.TimeoutExpired as expired:
        said = expired.output.decode(errors="replace") if isinstance(expired.output, bytes) else expired.output or ""
        return Seen.judged(f"not over after {check.limit_s:g} s; {last_words(said)}", False)
    for line in reversed(ended.stdout.splitlines()):
        if line.startswith(MARK):
            told = json.loads(line.removeprefix(MARK))
            return Seen(told["text"], Verdict(told["verdict"]), told["numbers"])
    return Seen.judged(f"ended with {ended.returncode}; {last_words(ended.stdout)}", False)


def last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "it said: " + " | ".join(lines[-LAST_LINES:]) if lines else "it said nothing"
