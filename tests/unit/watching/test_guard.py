"""Errors of instruments: the training goes on unchanged, the reason is printed, and the rest is recorded."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from parabench import watch
from parabench.probes.step_clock import StepClock
from parabench.watching import describe, observer
from parabench.watching.loop import Loop
from parabench.watching.observer import Observer, guard
from process_helpers import query

pytestmark = pytest.mark.usefixtures("unanalyzed")

STEPS = 40


def failing(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return `function`, which raises an error after `calls` calls."""
    counted = iter(range(10**6))

    def call(*args: Any, **named: Any) -> Any:
        if next(counted) >= calls:
            raise RuntimeError("the instrument is broken")
        return function(*args, **named)

    return call


def losses(folder: Path | None, lines: list[str]) -> list[float]:
    """Return the losses of a training run. It is watched if there is a folder."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(2, 4) for _ in range(STEPS)]
    found = []
    watched: Any = watch(model, optimizer, out=folder, log=lines.append) if folder else nullcontext(iter)
    with watched as steps:
        for _ in range(2):
            for batch in steps(batches):
                optimizer.zero_grad()
                loss = model(batch).square().sum()
                loss.backward()
                found.append(loss.item())
                optimizer.step()
    return found


# (owner, name, number of calls before the first error, name of the instrument, number of recorded steps)
CALLBACKS: list[tuple[Any, str, int, str, int]] = [
    (StepClock, "mark", 62, "the marking of steps", 10),
    (Loop, "_mark", 63, "the marking of steps", 10),
    (describe, "size_of", 0, "the reading of the batch size", 2 * STEPS),
    (Observer, "_autocast_now", 0, "the reading of autocast", 2 * STEPS),
    (observer, "state_bytes", 0, "the reading of memory", 2 * STEPS),
    (observer.Instruments, "report", 0, "the instruments of single steps", 2 * STEPS),
    (observer, "loop_time", 0, "the account of the loop's time", 2 * STEPS),
]


@pytest.mark.parametrize(("owner", "name", "calls", "reason", "steps"), CALLBACKS)
def test_guard_keeps_the_training_when_an_instrument_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int, reason: str, steps: int
) -> None:
    expected = losses(None, [])
    monkeypatch.setattr(owner, name, failing(getattr(owner, name), calls))
    lines: list[str] = []
    assert losses(tmp_path, lines) == expected
    (line,) = [line for line in lines if "the instrument is broken" in line]
    assert f"switched off {reason} after an error (RuntimeError: the instrument is broken)" in line
    recorded = query(tmp_path / "results.db", "SELECT count(*), count(value) FROM sample WHERE metric = 'step_s'")
    assert recorded == [(steps, steps)]


class Recorder:
    """A recorder of collectives that fails before or after the call."""

    def __init__(self, *, before: bool) -> None:
        self.before = before

    def follow(self, op: str, group: Any, results: Any, call: Callable[[], Any], *, waits: bool = False) -> Any:
        if not self.before:
            call()
        raise RuntimeError("the instrument is broken")

    def follow_all(self, work: Any) -> Any:
        raise RuntimeError("the instrument is broken")


@pytest.mark.parametrize("before", [False, True])
def test_guard_makes_each_collective_call_once(before: bool) -> None:
    made: list[int] = []
    failures: list[Exception] = []
    recorder = Recorder(before=before)
    guard(recorder, failures.append)  # type: ignore[arg-type]

    def call() -> str:
        made.append(1)
        return "work"

    assert [recorder.follow("all_reduce", None, [], call) for _ in range(3)] == ["work"] * 3
    assert recorder.follow_all("works") == "works"
    assert len(made) == 3
    assert len(failures) == 2
