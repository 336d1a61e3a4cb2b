"""The progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rich.progress
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from parabench.analysis.launch_number import launch_number
from parabench.analysis.text import format
from parabench.errors import discard, print_error
from parabench.plan.collective_case import size_text
from parabench.plan.plan import Skipped
from parabench.store.record import FIRST_BLOCK, UNCOUNTED, AnyCase, Launch, Phase, Status


class PatientConsole(Console):
    """A console that outlives its reader: `parabench run ... | head` measures to the end, for the store's sake.

    Text that it is given is a line and stays one, and controls no terminal, whatever a label or an error holds.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's, of lines. Where they cannot be written, as on a full disk, standard error says so once."""
        try:
            super().print(*(format.printable(each) if isinstance(each, str) else each for each in objects), **options)
        except OSError as error:
            self._end()
            if not self.stderr:
                why = f"standard output cannot be written: {format.one_line(error)}; what follows is not shown"
                print_error(f"parabench: {why}")

    def on_broken_pipe(self) -> None:
        """Say nothing more, instead of ending the process. Only the stream that lost its reader ends: that of
        `ab --json -` is stderr, and the results that follow on stdout have a reader of their own."""
        self._end()

    def _end(self) -> None:
        self.quiet = True
        discard(self.file)


def logger(console: Console, prefix: str = "") -> Callable[[str], None]:
    """What tells the user a line, as it is, that begins with `prefix`."""

    def log(line: str) -> None:
        console.print(prefix + line if line else prefix.rstrip(), highlight=False, markup=False, soft_wrap=True)

    return log


def skipped_lines(skipped: Sequence[Skipped[Any]]) -> list[str]:
    """What is skipped and why, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for each in skipped:
        reasons.setdefault(each.reason, []).append(each.case.label)
    return [
        f"skipped {labels[0] if len(labels) == 1 else f'{len(labels)} cases'}: {reason}"
        for reason, labels in reasons.items()
    ]


class Progress:
    """Is told how a session goes on; this one tells nobody."""

    def launching(self, case: AnyCase, block: int) -> None:
        """A launch of `case` begins."""

    def sharing(self, cases: int, block: int, rounds: int) -> None:
        """A launch that so many cases share begins, in which they take turns in `rounds`; 0: in none."""

    def launched(self, launch: Launch) -> None:
        """It ended; or a case's part of one that cases shared."""

    def shared(self, cases: int, block: int, rounds: int, wall_s: float) -> None:
        """It ended."""


class PlainProgress(Progress):
    """One line a launch. Of `blocks` of a race nobody knows how many there will be."""

    def __init__(self, console: Console, total: int, blocks: int | None, prefix: str) -> None:
        self._log, self._total, self._blocks, self._done = logger(console, prefix), total, blocks, 0

    def launching(self, case: AnyCase, block: int) -> None:
        self.starting(case.label, block)

    def sharing(self, cases: int, block: int, rounds: int) -> None:
        self.starting(_of_cases(cases, rounds), block)

    def launched(self, launch: Launch) -> None:
        ok = launch.status is Status.OK
        if "turns" not in launch.facts:
            self.ended(launch.case.label, launch.block, outcome(launch), ok)
        elif not ok:
            self.failed(launch.case.label, launch.block, outcome(launch))

    def shared(self, cases: int, block: int, rounds: int, wall_s: float) -> None:
        of_rounds = f"{format.count(rounds, 'round')}, " if rounds else ""
        self.ended(_of_cases(cases, rounds), block, f"{of_rounds}{format.duration(wall_s)}", True)

    def failed(self, label: str, block: int, how: str) -> None:
        """A case failed in a launch that it shared; what is not counted."""
        self._log(f"{self._place(block)}{label}: {how}")

    def starting(self, label: str, block: int) -> None:
        """A launch of what is called `label` begins: the line comes when there is a step time to tell."""

    def ended(self, label: str, block: int, how: str, ok: bool) -> None:
        """It ended; `how` says how in a few words. Tell which launch of how many this was, and what came out."""
        count = UNCOUNTED.get(block)
        if count is None:
            self._done += 1
            count = f"{self._done}/{max(self._done, self._total)}"
        said = f"{self._place(block)}{label}: {how}"
        self._log(said if count == "1/1" else f"[{count}] {said}")

    def _place(self, block: int) -> str:
        if block < FIRST_BLOCK:
            return ""
        return f"block {block + 1}, " if self._blocks is None else f"block {block + 1} of {self._blocks}, "


def _of_cases(cases: int, rounds: int) -> str:
    return f"{format.count(cases, 'case')} {'in turns' if rounds else 'one after the other'}"


class LiveProgress(PlainProgress):
    """A bar with the case, block, count, time left and the last step time; launches that fail leave a line."""

    def __init__(self, console: Console, total: int, blocks: int | None, prefix: str) -> None:
        super().__init__(console, total, blocks, prefix)
        self._prefix = prefix
        self.bar = rich.progress.Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self._task = self.bar.add_task("starting", total=total)
        self._last = ""

    def starting(self, label: str, block: int) -> None:
        self.bar.update(self._task, description=f"{self._place(block)}{label}{self._last}")

    def ended(self, label: str, block: int, how: str, ok: bool) -> None:
        self._last = f"  (last: {how})"
        if block >= FIRST_BLOCK:
            self.bar.advance(self._task)
        if not ok:
            self.failed(label, block, how)

    def failed(self, label: str, block: int, how: str) -> None:
        self.bar.console.print(f"{self._prefix}{label}: {how}", highlight=False, markup=False)


@contextmanager
def make_progress(console: Console, total: int, blocks: int | None, prefix: str = "") -> Iterator[PlainProgress]:
    """The display that fits `console`, for `total` launches in `blocks` blocks; its lines begin with `prefix`."""
    if not console.is_terminal:
        yield PlainProgress(console, total, blocks, prefix)
        return
    live = LiveProgress(console, total, blocks, prefix)
    with live.bar:
        yield live


def outcome(launch: Launch) -> str:
    """A launch in a few words: the number that answers make of its steps, or of its largest calls, or how it failed."""
    if launch.status is not Status.OK:
        return f"{launch.status}: {launch.failure}" if launch.failure else str(launch.status)
    if launch.case.kind == "collectives":
        size = max(call.bytes for call in launch.collectives)
        took = launch_number(launch.call_durations(size), launch.case.device)
        return f"{format.milliseconds(took)} per call at {size_text(size)}"
    return f"{format.milliseconds(launch_number(launch.step_times(Phase.MEASURE), launch.case.device))} per step"
