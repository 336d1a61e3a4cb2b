"""Print the progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

from parabench.analysis import format
from parabench.analysis.launch_number import launch_number
from parabench.data.checks import is_users
from parabench.errors import discard, print_error
from parabench.plan.case import Case
from parabench.plan.collective_case import size_text
from parabench.plan.plan import Skipped
from parabench.store.record import FIRST_REPETITION, UNCOUNTED, AnyCase, Launch, Phase, Status

# The color of failed launches.
FAILED = "red"


class _PatientStream:
    """A text stream that discards further text after its reader or its terminal is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            # Only this stream ends: `ab --json -` logs to stderr, and stdout may have a reader.
            discard(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)


class PatientConsole(Console):
    """A console whose run continues after its reader or its terminal is gone.

    `parabench run ... | head` measures to the end, and further text is discarded. Each printed text stays one line, and
    cannot control the terminal.
    """

    def __init__(self, *, file: TextIO | None = None, stderr: bool = False, **options: Any) -> None:
        stream = file or (sys.stderr if stderr else sys.stdout)
        # If the stream was closed before Python started, rich writes nowhere.
        patient: Any = stream and _PatientStream(stream)
        super().__init__(file=patient, stderr=stderr, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like rich, without line breaks and control characters in texts."""
        super().print(*(format.printable(each) if isinstance(each, str) else each for each in objects), **options)


def logger(
    console: Console, prefix: str = "", *, answers: bool = False, style: str | None = None
) -> Callable[[str], None]:
    """Return a function that prints a line with `prefix`. On a quiet console, it prints only `answers`."""

    def log(line: str) -> None:
        quiet, console.quiet = console.quiet, console.quiet and not answers
        try:
            whole = prefix + line if line else prefix.rstrip()
            console.print(whole, style=style, highlight=False, markup=False, soft_wrap=True)
        finally:
            console.quiet = quiet

    return log


def warner(console: Console, prefix: str = "") -> Callable[[str], None]:
    """Return a function that prints a warning line. On a quiet console, it prints to standard error."""
    return (lambda line: print_error(format.printable(prefix + line))) if console.quiet else logger(console, prefix)


def skipped_lines(skipped: Sequence[Skipped[Any]]) -> list[str]:
    """Return one line for each reason to skip cases, with their label or their number."""
    reasons: dict[str, list[str]] = {}
    for each in skipped:
        reasons.setdefault(each.reason, []).append(each.case.label)
    return [
        f"skipped {labels[0] if len(labels) == 1 else f'{len(labels)} configurations'}: {reason}"
        for reason, labels in reasons.items()
    ]


def trial_lines(cases: Iterable[AnyCase]) -> list[str]:
    """Return notes about each custom model and data source, from a trial with one batch. Each line occurs once."""
    tried = [case for case in cases if isinstance(case, Case) and is_users(case)]
    if not tried:
        return []
    from parabench.data.trial import notes_of  # it needs torch; built-in models do not

    return list(dict.fromkeys(f"note: {line}" for case in tried for line in notes_of(case)))


class Progress:
    """Receive the events of a session, without printing them."""

    def launching(self, cases: Sequence[AnyCase], repetition: int, rounds: int | None = None) -> None:
        """Show that a launch of `cases` starts.

        If cases share it, they are interleaved in `rounds`; with 0 rounds, they run one after the other.
        """

    def launched(self, launch: Launch) -> None:
        """Show the end of a launch, or of one case's part of a shared launch."""

    def shared(self, cases: int, repetition: int, rounds: int, wall_s: float) -> None:
        """Show the end of a shared launch of `cases` cases."""


class PlainProgress(Progress):
    """Print a line for each launch; on a quiet console, only for failures. `repetitions` is None with racing."""

    def __init__(self, console: Console, total: int, repetitions: int | None, prefix: str) -> None:
        self._log = logger(console, prefix)
        self._fail = warner(console, prefix) if console.quiet else logger(console, prefix, style=FAILED)
        self._total, self._repetitions, self._done = total, repetitions, 0

    def launching(self, cases: Sequence[AnyCase], repetition: int, rounds: int | None = None) -> None:
        self.starting(cases[0].label if rounds is None else _of_cases(len(cases), rounds), repetition)

    def launched(self, launch: Launch) -> None:
        ok = launch.status is Status.OK
        if "turns" not in launch.facts:
            self.ended(launch.case.label, launch.repetition, outcome(launch), ok)
        elif not ok:
            self.failed(launch.case.label, launch.repetition, outcome(launch))

    def shared(self, cases: int, repetition: int, rounds: int, wall_s: float) -> None:
        of_rounds = f"{format.count(rounds, 'round')}, " if rounds else ""
        self.ended(_of_cases(cases, rounds), repetition, f"{of_rounds}{format.duration(wall_s)}", True)

    def failed(self, label: str, repetition: int, how: str) -> None:
        """Print the failure of a case in a shared launch, or of a launch that does not count."""
        self._fail(f"{self._place(repetition)}{label}: {how}")

    def starting(self, label: str, repetition: int) -> None:
        """Note the start of a launch with this label. Its line is printed at its end."""

    def ended(self, label: str, repetition: int, how: str, ok: bool) -> None:
        """Print the number, the label and the outcome `how` of a launch."""
        count = UNCOUNTED.get(repetition)
        if count is None:
            self._done += 1
            count = f"{self._done}/{max(self._done, self._total)}"
        line = f"{self._place(repetition)}{label}: {how}"
        (self._log if ok else self._fail)(line if count == "1/1" else f"[{count}] {line}")

    def _place(self, repetition: int) -> str:
        of = "" if self._repetitions is None else f" of {self._repetitions}"
        return "" if repetition < FIRST_REPETITION else f"repetition {repetition + 1}{of}, "


def _of_cases(cases: int, rounds: int) -> str:
    return f"{format.count(cases, 'configuration')} {'interleaved' if rounds else 'one after the other'}"


class LiveProgress(PlainProgress):
    """Show a bar with the case, the repetition, the time left and the last step time. Print a line for failures."""

    def __init__(self, console: Console, total: int, repetitions: int | None, prefix: str) -> None:
        super().__init__(console, total, repetitions, prefix)
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

    def starting(self, label: str, repetition: int) -> None:
        self.bar.update(self._task, description=f"{self._place(repetition)}{label}{self._last}")

    def ended(self, label: str, repetition: int, how: str, ok: bool) -> None:
        self._last = f"  (last: {how})"
        if repetition >= FIRST_REPETITION:
            self.bar.advance(self._task)
        if not ok:
            self.failed(label, repetition, how)

    def failed(self, label: str, repetition: int, how: str) -> None:
        self._fail(f"{label}: {how}")


@contextmanager
def make_progress(console: Console, total: int, repetitions: int | None, prefix: str = "") -> Iterator[PlainProgress]:
    """Yield the display for `total` launches: a bar on a terminal, else lines with `prefix`.

    A pipe has no bar, even with FORCE_COLOR, which rich takes for a terminal.
    """
    if console.quiet or not console.is_terminal or console.is_dumb_terminal or not console.file.isatty():
        yield PlainProgress(console, total, repetitions, prefix)
        return
    live = LiveProgress(console, total, repetitions, prefix)
    with live.bar:
        yield live


def outcome(launch: Launch) -> str:
    """Return the outcome of a launch in a few words: its step time, the time of its largest calls, or its failure."""
    if launch.status is not Status.OK:
        return f"{launch.status}: {launch.failure}" if launch.failure else str(launch.status)
    if launch.case.kind == "collectives":
        size = max(call.bytes for call in launch.collectives if call.bytes is not None)
        took = launch_number(launch.call_durations(size), launch.case.device)
        return f"{format.milliseconds(took)} per call at {size_text(size)}"
    return f"{format.milliseconds(launch_number(launch.step_times(Phase.MEASURE), launch.case.device))} per step"
