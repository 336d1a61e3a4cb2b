"""Run checks one after the other in a child process.

Checks share a process, because `import torch` and CUDA's start take seconds. If a check crashes or hangs, only that
check has failed: the remaining checks run in a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.gpu.check import Check, Outcome, Target, Verdict
from parabench.signals import die_with_parent

# The program that runs the checks in a child process.
MODULE = "benchmarks.gpu"
# The number of lines that are shown of a failed process' output.
LAST_LINES = 3
# The time that a process has to end after its last check.
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that all checks share; None: unlimited."""

    seconds: float | None
    began_s: float

    def left_s(self) -> float:
        return float("inf") if self.seconds is None else self.began_s + self.seconds - time.monotonic()

    @property
    def reason(self) -> str:
        return f"budget of {self.seconds:g} s used up"


def groups(checks: Sequence[Check]) -> list[list[Check]]:
    """Split the checks into runs that share a process."""
    found: list[list[Check]] = []
    for check in checks:
        before = found[-1][-1] if found else None
        if before and check.holds_gpu >= before.holds_gpu and check.environment == before.environment:
            found[-1].append(check)
        else:
            found.append([check])
    return found


def run_checks(checks: Sequence[Check], target: Target, budget: Budget) -> Iterator[tuple[Check, Outcome, float]]:
    """Run every check; yield each with its outcome and its seconds when it ends. Stop when the budget is used up."""
    for group in groups(checks):
        while group and budget.left_s() > 0:
            with Child(group, target) as child:
                while group and not child.failed and (left_s := budget.left_s()) > 0:
                    check, began_s = group.pop(0), time.monotonic()
                    outcome = child.outcome(min(check.limit_s, left_s))
                    seconds = time.monotonic() - began_s
                    if child.timed_out and left_s < check.limit_s:
                        outcome = Outcome.not_run(f"stopped after {seconds:.0f} s: {budget.reason}")
                    yield check, outcome, seconds


def work(checks: Sequence[Check], orders: str) -> None:
    """Run the checks in this process with the orders of `Child`; write each outcome to its pipe as a line of JSON.

    The line also has the size of the output so far, where the output of the next check begins.
    """
    results, parent, *target = json.loads(orders)
    die_with_parent(parent)
    for check in checks:
        outcome = asdict(check.outcome(Target(*target)))
        sys.stdout.flush()
        os.write(results, json.dumps([outcome, os.fstat(1).st_size]).encode() + b"\n")


class Child:
    """A process that runs checks. Its output goes to a file, and its outcomes come through a pipe."""

    def __init__(self, checks: Sequence[Check], target: Target) -> None:
        self.failed = self.timed_out = False
        self._left, self._begin = len(checks), 0
        self._folder = tempfile.TemporaryDirectory(prefix="parabench-gpu-")
        self._output = Path(self._folder.name, "output")
        self._results, write = os.pipe()
        self._pending = b""
        command = [sys.executable, "-m", MODULE, "--only", ",".join(check.name for check in checks)]
        command += ["--child", json.dumps([write, os.getpid(), target.type, target.name, target.memory_bytes])]
        # torch.compile must not find what an earlier run compiled.
        own = {"TORCHINDUCTOR_CACHE_DIR": str(Path(self._folder.name, "inductor")), **checks[0].environment}
        if target.is_cpu:
            own["OMP_NUM_THREADS"] = "1"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[write],
                start_new_session=True,
                env=os.environ | own,
            )
        os.close(write)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the process and its children."""
        if not (kind or self.failed or self._left):
            self._wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._wait()
        os.close(self._results)
        self._folder.cleanup()

    def outcome(self, limit_s: float) -> Outcome:
        """Wait for the next outcome. After a crash or a timeout `failed` is set, and no further outcome comes."""
        line = self._line(limit_s)
        if line:
            self._left -= 1
            found, self._begin = json.loads(line)
            return Outcome(found["text"], Verdict(found["verdict"]), found["numbers"])
        self.failed, self.timed_out = True, line is None
        if not self.timed_out:
            self._wait()
        reason = f"not over after {limit_s:g} s" if line is None else f"its process ended with {self._process.poll()}"
        return Outcome.judged(f"{reason}; {last_words(self._output, self._begin)}", False)

    def _line(self, limit_s: float) -> bytes | None:
        """Return the next line of the pipe; empty if the process has ended, None if the time is over."""
        until = time.monotonic() + limit_s
        while b"\n" not in self._pending:
            if not select.select([self._results], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            more = os.read(self._results, 1 << 16)
            if not more:
                return b""
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)


def last_words(output: Path, begin: int) -> str:
    """Return the last lines of the output after the byte `begin`."""
    text = output.read_bytes()[begin:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "last output: " + " | ".join(lines[-LAST_LINES:]) if lines else "it printed nothing"
