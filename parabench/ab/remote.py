"""The process of one side of `parabench ab`, and the connection to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
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

# What a side gets to end its ranks in when it is asked to stop; they get 2 s from it.
STOP_S = 10.0

# What a side gets to import parabench in and say who it is, and after a launch's deadline to say how that ended.
HELLO_S = 60.0
AFTER_DEADLINE_S = 30.0

# How much of what a side wrote last is told again.
LONGEST = 200

Heard = Callable[[str, dict[str, Any]], None]


class VariantProcess:
    """A side that is running. `heard(side, what)` is told what the side tells in between, and once when it is silent
    beyond the deadline of a launch: {"tells": "silent", "label", "s"}."""

    def __init__(self, variant: Variant, heard: Heard) -> None:
        self.variant, self._heard = variant, heard
        self._greeted = False
        # After how many seconds without a word it is silent, and what is called so then.
        self._limit_s: float | None = None
        self._waiting: str | None = None
        # What its libraries, a sitecustomize or a script around python print.
        self._printed = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 - as long as the process
        self.connection, theirs = Pipe()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    # -P: a folder of that name where the user stands is not the parabench of this side.
                    [variant.python, "-P", "-c", COMMAND, str(os.getpid()), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._printed,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    env=variant.environment(),
                    cwd=variant.folder,
                    # Ctrl-C in the terminal comes to the parent alone, which stops both sides in good order.
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(f"side {variant.name} does not start: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def hello(self) -> bool:
        """Whether it knows launches that take turns with another side's. Raises UsageError when it does not
        understand what will be asked, would write another kind of store, or is not the parabench that was meant."""
        try:
            self.say("hello")
            there = self.hear()
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
        package = str(there.get("package"))
        if there.get("module") != package:
            raise UsageError(
                f"side {self._name} mixes two parabench: the package is {package}, its ab is from "
                f"{there.get('module')}; see what its PYTHONPATH and its site-packages add to the package"
            )
        own = self.variant.folder / "parabench" if self.variant.folder else None
        if own is not None and (own / "__init__.py").is_file() and own.resolve() != Path(package):
            raise UsageError(
                f"side {self._name} holds a parabench, but another one answered, that in {package}; see what that "
                "side's python imports before its PYTHONPATH"
            )
        return bool(there.get("turns"))

    def ask(self, question: str, **values: Any) -> dict[str, Any]:
        """The answer to a question. Raises UsageError when the side refuses, or ends."""
        self.say(question, **values)
        return self.hear()

    def say(self, question: str, **values: Any) -> None:
        """Ask, and leave the answer for `hear`."""
        with contextlib.suppress(OSError):  # it has ended: `hear` says how
            self.connection.send_bytes(json.dumps({"ask": question, **values}).encode())

    def hear(self) -> dict[str, Any]:
        """The answer to what was said. Raises UsageError when the side refuses, or ends."""
        while True:
            if not self.connection.poll(self.limit_s):
                self.silent()
            elif (answer := self.receive()) is not None:
                return answer

    @property
    def limit_s(self) -> float | None:
        """After how many seconds without a word it is silent."""
        return self._limit_s if self._greeted else HELLO_S

    def silent(self) -> None:
        """Tell of it that it is. Raises UsageError where it has not said a word yet."""
        if not self._greeted:
            raise UsageError(f"side {self._name} has not answered for {HELLO_S:g} s")
        self._heard(self.variant.name, {"tells": "silent", "label": self._waiting, "s": self._limit_s})
        self._limit_s = None

    def receive(self) -> dict[str, Any] | None:
        """The next that it says: an answer; or what it tells in between, which gives None. Raises UsageError when the
        side refuses, or ends."""
        try:
            heard = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise UsageError(f"side {self._name} {self._how_it_ended()}") from None
        if "answer" in heard:
            self._greeted, self._limit_s = True, None
            answer: dict[str, Any] = heard["answer"]
            if "refused" in answer:
                raise UsageError(f"side {self.variant.name}: {answer['refused']}")
            return answer
        starts = heard["tells"] == "starting"
        self._limit_s = heard["deadline_s"] + AFTER_DEADLINE_S if starts else None
        self._waiting = heard["label"]
        self._heard(self.variant.name, heard)
        return None

    def stop(self) -> None:
        """Ask it to end; one that waits for a question ends at once, one that launches ends its ranks first."""
        self._process.terminate()

    def wait(self) -> None:
        """Wait until it is gone, and end it when it takes too long."""
        self.connection.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()

    @property
    def _name(self) -> str:
        words = self.variant.shown()
        return f"{self.variant.name} ({words})" if words else self.variant.name

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code == STOPPED or -code in STOP_SIGNALS:
            return "was stopped"
        if code == -signal.SIGKILL:  # whatever it said last is not about this
            return "ended by SIGKILL"
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._printed.seek(0)
        lines = [line.strip() for line in self._printed if line.strip()]
        return f"{how}: {lines[-1][:LONGEST]}" if lines else how


class FailedTurns(NamedTuple):
    """Of launches that took turns, the `side` of which it failed, by its place, and how."""

    side: int
    status: str


def hear_turns(sides: Sequence[VariantProcess], token: Token) -> FailedTurns | None:
    """Hand the `token` to and fro until both sides have answered how their launches ended: which one failed, None where
    both succeeded. Raises UsageError when a side refuses, or ends.

    Where one side hangs, both are over their deadline: to blame is the one that the other waits for.
    """
    left = dict(enumerate(sides))
    # (Whether it only waited for the other one, when it came, the side and how).
    failed: list[tuple[bool, int, FailedTurns]] = []
    while left:
        ready = wait([*token.heard_at, *(side.connection for side in left.values())], _shortest(left.values()))
        for number, pipe in enumerate(token.heard_at):
            if pipe in ready:
                token.heard(number)
        for number, side in list(left.items()):
            if not ready and side.limit_s is not None:
                side.silent()
            if side.connection not in ready or (answer := side.receive()) is None:
                continue
            del left[number]
            if answer["status"] != Status.OK:
                token.end(1 - number)
                if not answer["ended"]:
                    innocent = answer["status"] == Status.HUNG and number not in token.awaited
                    failed.append((innocent, len(failed), FailedTurns(number, answer["status"])))
    return min(failed)[-1] if failed else None


def _shortest(sides: Iterable[VariantProcess]) -> float | None:
    return min((side.limit_s for side in sides if side.limit_s is not None), default=None)


def end(sides: Sequence[VariantProcess]) -> None:
    """Stop all of them, and wait until they are gone."""
    for side in sides:
        side.stop()
    for side in sides:
        side.wait()


@contextlib.contextmanager
def running(variants: list[Variant], heard: Heard) -> Iterator[list[VariantProcess]]:
    """Both sides, from their start to their end; none of their processes is left when this is over."""
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
