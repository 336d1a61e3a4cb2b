"""A variant of `parabench ab`: environment variables, a virtual environment and a folder, as words; and its process."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import psutil

from parabench.ab.agent import COMMAND, VariantAgent
from parabench.cluster.connection import PROTOCOL, Connection, LaunchEvent, Refused, Reply
from parabench.errors import UsageError
from parabench.launch.token import Token
from parabench.machine.machine import ENVIRONMENT_VARIABLES
from parabench.signals import STOP_SIGNALS, STOPPED, adopt_orphans
from parabench.store.record import Status
from parabench.store.schema import SCHEMA_VERSION

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# The variants in the results database, as users read them.
ROLE = {"a": "baseline", "b": "candidate"}

# Seconds that a stopped variant has to end its ranks. The variant gives its ranks 2 s.
STOP_S = 10.0
# The longest part of a variant's last line that is shown.
LONGEST = 200

P = ParamSpec("P")
R = TypeVar("R")
# Called with the variant's name and the progress of its launches.
Heard = Callable[[str, LaunchEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant. `venv` is a virtual environment, and `folder` a checkout; `None` means those of this process."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    venv: Path | None = None
    folder: Path | None = None

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python") if self.venv else sys.executable

    def environment(self) -> dict[str, str]:
        """Return all variables of its processes. A virtual environment is activated as its script does."""
        environment = dict(os.environ)
        if self.venv is not None:
            environment |= {"VIRTUAL_ENV": str(self.venv), "PATH": _first(self.venv / "bin", environment.get("PATH"))}
            environment.pop("PYTHONHOME", None)
        environment |= self.variables
        if self.folder is not None:
            environment["PYTHONPATH"] = _first(self.folder, environment.get("PYTHONPATH"))
        return environment

    def shown(self) -> str:
        """Return its words for the user who typed them, without values that may be secret."""
        return shlex.join(self._words(paths=True))

    def recorded(self) -> str:
        """Return its words for the results database: without paths, and values of variables that are not recorded."""
        return shlex.join(self._words(paths=False))

    def _words(self, paths: bool) -> Iterator[str]:
        for name, value in self.variables.items():
            yield f"{name}={value if name in ENVIRONMENT_VARIABLES else '...'}"
        yield from (str(each) if paths else each.name for each in (self.venv, self.folder) if each is not None)


def read_variant(name: str, text: str) -> Variant:
    """Return the variant, "a" or "b", that `text` describes. Raises UsageError."""
    option = f"--{ROLE[name]} {shlex.quote(text)}"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}; quote it as for a shell") from error
    variables: dict[str, str] = {}
    venvs: list[Path] = []
    folders: list[Path] = []
    for word in words:
        variable = _VARIABLE.fullmatch(word)
        path = Path(os.path.abspath(os.path.expanduser(word)))
        if variable:
            variables[variable[1]] = variable[2]
        elif os.access(path / "bin" / "python", os.X_OK):
            venvs.append(path)
        elif path.is_dir():
            folders.append(path)
        else:
            raise UsageError(
                f"{option}: {word!r} is neither NAME=VALUE nor a folder; '' is this checkout and environment"
            )
    for what, found in (("virtual environments", venvs), ("folders", folders)):
        if len(found) > 1:
            raise UsageError(f"{option}: {found[0].name} and {found[1].name} are both {what}; give one")
    return Variant(name=name, variables=variables, venv=next(iter(venvs), None), folder=next(iter(folders), None))


def _first(folder: Path, path: str | None) -> str:
    return os.pathsep.join([str(folder), *filter(None, [path])])


class VariantProcess:
    """A variant that is running. `heard` is called for its events."""

    def __init__(self, variant: Variant, heard: Heard) -> None:
        self.variant, self._heard = variant, heard
        # The output of its libraries, a sitecustomize, or a script around python.
        self._printed = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 - as long as the process
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours)
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
                raise UsageError(f"the {ROLE[variant.name]} does not start: {error}") from error

    def identify(self) -> None:
        """Raise UsageError if its parabench has another protocol or schema, or is not the one in its folder."""
        try:
            there = self.ask(VariantAgent.identify)
        except UsageError as error:
            raise UsageError(
                f"{error}; that variant needs a parabench whose `ab` speaks protocol {PROTOCOL}, as this one's does: "
                "install this one there, or give another"
            ) from None
        for what, mine in (("protocol", PROTOCOL), ("schema", SCHEMA_VERSION)):
            if there.get(what) != mine:
                raise UsageError(
                    f"the {self._name} is parabench {there.get('version')} with {what} {there.get(what)}, and "
                    f"this one has {mine}; both variants need a parabench that fits this one"
                )
        own = self.variant.folder / "parabench" if self.variant.folder else None
        if own is not None and (own / "__init__.py").is_file() and own.resolve() != Path(there["package"]):
            raise UsageError(
                f"the {self._name} has a parabench, but another one answered, from {there['package']}; see what "
                "that variant's python imports before its PYTHONPATH"
            )

    def ask(self, request: Callable[Concatenate[Any, P], R], *nothing: P.args, **values: P.kwargs) -> R:
        """Send a request, and return its result. Raises UsageError if the variant refuses, or ends."""
        self.say(request, *nothing, **values)
        return cast(R, self.hear())

    def say(self, request: Callable[Concatenate[Any, P], Any], *nothing: P.args, **values: P.kwargs) -> None:
        """Send a request. `hear` returns its result."""
        with contextlib.suppress(OSError):  # if the variant has ended, `hear` reports the reason
            self.connection.say(request, *nothing, **values)

    def hear(self) -> dict[str, Any]:
        """Return the next result. Raises UsageError if the variant refuses, or ends."""
        while (result := self.receive()) is None:
            pass
        return result

    def receive(self) -> dict[str, Any] | None:
        """Receive a message. Return a result, or `None` for an event. Raises UsageError if it refuses, or ends."""
        try:
            message = self.connection.receive()
        except (EOFError, OSError):
            raise UsageError(f"the {self._name} {self._how_it_ended()}") from None
        match message:
            case Reply(values):
                return values
            case Refused(why):
                raise UsageError(f"the {ROLE[self.variant.name]}: {why}")
            case LaunchEvent():
                self._heard(self.variant.name, message)
        return None

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
        role, words = ROLE[self.variant.name], self.variant.shown()
        return f"{role} ({words})" if words else role

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


def hear_turns(sides: Sequence[VariantProcess], token: Token) -> tuple[int, str] | None:
    """Pass the `token` back and forth until both launches have ended. Return the place of the variant whose launch
    failed, and the status of the launch; None if both succeeded.

    Raises UsageError if a variant refuses, or ends.
    """
    left = dict(enumerate(sides))
    # (whether the launch only waited for the other one, its place in the order of failures, the variant, the status)
    failed: list[tuple[bool, int, int, str]] = []
    while left:
        ready = wait([*token.inputs, *(side.connection.fileno() for side in left.values())])
        for number, pipe in enumerate(token.inputs):
            if pipe in ready:
                token.receive(number)
        for number, side in list(left.items()):
            if side.connection.fileno() not in ready or (result := side.receive()) is None:
                continue
            del left[number]
            if result["status"] != Status.OK:
                token.end(1 - number)
                if not result["ended"]:
                    # If one variant hangs, both exceed their deadline. The other one waits for the cause.
                    innocent = result["status"] == Status.HUNG and number not in token.awaited
                    failed.append((innocent, len(failed), number, result["status"]))
    return min(failed)[2:] if failed else None


def end(sides: Sequence[VariantProcess]) -> None:
    """Stop all of them, and wait for their end."""
    for side in sides:
        side.stop()
    for side in sides:
        side.wait()


@contextlib.contextmanager
def running(variants: list[Variant], heard: Heard) -> Iterator[list[VariantProcess]]:
    """Run the variants during the block. At its end, end all of their processes."""
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
