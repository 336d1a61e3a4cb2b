"""The process of one side of `parabench ab`, and the connection to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil

from parabench.ab.server import COMMAND, PROTOCOL
from parabench.ab.variant import Variant
from parabench.errors import UsageError
from parabench.signals import STOP_SIGNALS, STOPPED, adopt_orphans
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
        # What its libraries, a sitecustomize or a script around python print.
        self._printed = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 - as long as the process
        self._connection, theirs = Pipe()
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

    def hello(self) -> None:
        """Raise UsageError when it does not understand what will be asked, would write another kind of store, or is not
        the parabench that was meant."""
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

    def ask(self, question: str, **values: Any) -> dict[str, Any]:
        """The answer to a question. Raises UsageError when the side refuses, or ends."""
        self.say(question, **values)
        return self.hear()

    def say(self, question: str, **values: Any) -> None:
        """Ask, and leave the answer for `hear`."""
        with contextlib.suppress(OSError):  # it has ended: `hear` says how
            self._connection.send_bytes(json.dumps({"ask": question, **values}).encode())

    def hear(self) -> dict[str, Any]:
        """The answer to what was said. Raises UsageError when the side refuses, or ends."""
        waiting: str | None = None
        limit_s = None if self._greeted else HELLO_S
        while True:
            if not self._connection.poll(limit_s):
                if not self._greeted:
                    raise UsageError(f"side {self._name} has not answered for {HELLO_S:g} s")
                self._heard(self.variant.name, {"tells": "silent", "label": waiting, "s": limit_s})
                limit_s = None
                continue
            try:
                heard = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                raise UsageError(f"side {self._name} {self._how_it_ended()}") from None
            if "answer" in heard:
                self._greeted = True
                answer: dict[str, Any] = heard["answer"]
                if "refused" in answer:
                    raise UsageError(f"side {self.variant.name}: {answer['refused']}")
                return answer
            starts = heard["tells"] == "starting"
            limit_s = heard["deadline_s"] + AFTER_DEADLINE_S if starts else None
            waiting = heard["label"]
            self._heard(self.variant.name, heard)

    def stop(self) -> None:
        """Ask it to end; one that waits for a question ends at once, one that launches ends its ranks first."""
        self._process.terminate()

    def wait(self) -> None:
        """Wait until it is gone, and end it when it takes too long."""
        self._connection.close()
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
