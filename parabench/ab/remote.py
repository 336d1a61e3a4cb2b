"""The process of one variant of `parabench ab`, and the connection to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from parabench.ab.server import COMMAND, PROTOCOL
from parabench.ab.variant import Variant
from parabench.errors import UsageError
from parabench.launch.token import Token
from parabench.signals import STOP_SIGNALS, STOPPED, adopt_orphans
from parabench.store.record import Status
from parabench.store.schema import SCHEMA_VERSION

# The time that a variant has to end its ranks when it is stopped. It gives them 2 s.
STOP_S = 10.0
# The longest part of a variant's last line that is shown.
LONGEST = 200

Heard = Callable[[str, dict[str, Any]], None]


class VariantProcess:
    """A variant that is running. `heard(name, event)` is called for each event between answers."""

    def __init__(self, variant: Variant, heard: Heard) -> None:
        self.variant, self._heard = variant, heard
        # The output of its libraries, a sitecustomize, or a script around python.
        self._printed = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 - as long as the process
        self.connection, theirs = Pipe()
        with theirs:
            try:
                self.process = subprocess.Popen(
                    # -P: a folder named parabench in the working directory is not the variant's parabench.
                    [variant.python, "-P", "-c", COMMAND, str(os.getpid()), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._printed,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    env=variant.environment(),
                    cwd=variant.folder,
                    # Ctrl-C in the terminal reaches the parent alone, which stops both variants in order.
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(f"side {variant.name} does not start: {error}") from error

    def hello(self) -> None:
        """Raise UsageError if it has another protocol or schema, or is another parabench than that of its folder."""
        try:
            there = self.ask("hello")
        except UsageError as error:
            raise UsageError(
                f"{error}; that side needs a parabench whose `ab` speaks protocol {PROTOCOL}, as this one's does: "
                "install this one there, or give another"
            ) from None
        for what, mine in (("protocol", PROTOCOL), ("schema", SCHEMA_VERSION)):
            if there.get(what) != mine:
                raise UsageError(
                    f"side {self._name} is parabench {there.get('version')} with {what} {there.get(what)}, and this "
                    f"one has {mine}; both sides need a parabench that fits this one"
                )
        own = self.variant.folder / "parabench" if self.variant.folder else None
        if own is not None and (own / "__init__.py").is_file() and own.resolve() != Path(there["package"]):
            raise UsageError(
                f"side {self._name} holds a parabench, but another one answered, that in {there['package']}; see what "
                "that side's python imports before its PYTHONPATH"
            )

    def ask(self, question: str, **values: Any) -> dict[str, Any]:
        """Return the answer to a question. Raises UsageError if the variant refuses, or ends."""
        self.say(question, **values)
        return self.hear()

    def say(self, question: str, **values: Any) -> None:
        """Send a question. `hear` returns its answer."""
        with contextlib.suppress(OSError):  # it has ended: `hear` reports how
            self.connection.send_bytes(json.dumps({"ask": question, **values}).encode())

    def hear(self) -> dict[str, Any]:
        """Return the next answer. Raises UsageError if the variant refuses, or ends."""
        while (answer := self.receive()) is None:
            pass
        return answer

    def receive(self) -> dict[str, Any] | None:
        """Receive a message. Return an answer, or `None` for an event. Raises UsageError if it refuses, or ends."""
        try:
            message = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise UsageError(f"side {self._name} {self._how_it_ended()}") from None
        if "answer" not in message:
            self._heard(self.variant.name, message)
            return None
        answer: dict[str, Any] = message["answer"]
        if "refused" in answer:
            raise UsageError(f"side {self.variant.name}: {answer['refused']}")
        return answer

    def stop(self) -> None:
        """Ask it to end. If it launches, it ends its ranks first."""
        self.process.terminate()

    def wait(self) -> None:
        """Wait for its end, and kill it after STOP_S."""
        self.connection.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._printed.close()

    @property
    def _name(self) -> str:
        words = self.variant.shown()
        return f"{self.variant.name} ({words})" if words else self.variant.name

    def _how_it_ended(self) -> str:
        code = self.process.wait()
        if code == STOPPED or -code in STOP_SIGNALS:
            return "was stopped"
        if code == -signal.SIGKILL:  # its last line has another reason
            return "ended by SIGKILL"
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._printed.seek(0)
        lines = [line.strip() for line in self._printed if line.strip()]
        return f"{how}: {lines[-1][:LONGEST]}" if lines else how


class FailedTurns(NamedTuple):
    """The variant, by its place, whose interleaved launch failed, and the status of the launch."""

    side: int
    status: str


def hear_turns(sides: Sequence[VariantProcess], token: Token) -> FailedTurns | None:
    """Hand the `token` back and forth until both launches have ended. Return the one that failed, if any.

    If one variant hangs, both exceed their deadline: the one that the other waits for is the cause. Raises UsageError
    if a variant refuses, or ends.
    """
    left = dict(enumerate(sides))
    # (whether it only waited for the other one, its place in time, the launch)
    failed: list[tuple[bool, int, FailedTurns]] = []
    while left:
        ready = wait([*token.heard_at, *(side.connection for side in left.values())])
        for number, pipe in enumerate(token.heard_at):
            if pipe in ready:
                token.heard(number)
        for number, side in list(left.items()):
            if side.connection not in ready or (answer := side.receive()) is None:
                continue
            del left[number]
            if answer["status"] != Status.OK:
                token.end(1 - number)
                if not answer["ended"]:
                    innocent = answer["status"] == Status.HUNG and number not in token.awaited
                    failed.append((innocent, len(failed), FailedTurns(number, answer["status"])))
    return min(failed)[-1] if failed else None


def end(sides: Sequence[VariantProcess]) -> None:
    """Stop all of them, and wait for their end."""
    for side in sides:
        side.stop()
    for side in sides:
        side.wait()


@contextlib.contextmanager
def running(variants: list[Variant], heard: Heard) -> Iterator[list[VariantProcess]]:
    """Run the variants during the block. No process of theirs is left afterwards."""
    adopt_orphans()
    me = psutil.Process()
    others = {child.pid for child in me.children()}
    sides: list[VariantProcess] = []
    try:
        for variant in variants:
            sides.append(VariantProcess(variant, heard))  # noqa: PERF401 - those that started are ended
        yield sides
    finally:
        end(sides)
        left = [child for child in me.children() if child.pid not in others]
        for child in list(left):
            with contextlib.suppress(psutil.NoSuchProcess):
                left += child.children(recursive=True)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(left, timeout=STOP_S)
