"""Parse a variant of `parabench ab`, and run its agent in a process with the variant's environment."""

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
from parabench.store.database import SCHEMA_VERSION
from parabench.store.record import Status

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# The words for variants a and b in messages.
ROLE = {"a": "baseline", "b": "candidate"}

# Seconds until a stopped variant is killed. The variant gives its ranks 2 s.
STOP_S = 10.0
# The most characters of a variant's last line that are shown.
LONGEST = 200

P = ParamSpec("P")
R = TypeVar("R")
# Receives the name of a variant, and an event of its launches.
OnEvent = Callable[[str, LaunchEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Variant "a" or "b" of a comparison: environment variables, a virtual environment, and a checkout of the code.

    Without `venv` or `folder`, it uses the interpreter or the code of this process.
    """

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    venv: Path | None = None
    folder: Path | None = None

    @property
    def python(self) -> str:
        """Return the path of its interpreter."""
        return str(self.venv / "bin" / "python") if self.venv else sys.executable

    def environment(self) -> dict[str, str]:
        """Return the environment of its process. A virtual environment is activated as its `activate` script does."""
        environment = dict(os.environ)
        if self.venv is not None:
            environment |= {"VIRTUAL_ENV": str(self.venv), "PATH": _first(self.venv / "bin", environment.get("PATH"))}
            environment.pop("PYTHONHOME", None)
        environment |= self.variables
        if self.folder is not None:
            environment["PYTHONPATH"] = _first(self.folder, environment.get("PYTHONPATH"))
        return environment

    def shown(self) -> str:
        """Return its description for messages, with paths. Values of variables that may be secret are "..."."""
        return shlex.join(self._parts(paths=True))

    def recorded(self) -> str:
        """Return its description for the results database, with names of folders instead of paths."""
        return shlex.join(self._parts(paths=False))

    def _parts(self, paths: bool) -> Iterator[str]:
        for name, value in self.variables.items():
            yield f"{name}={value if name in ENVIRONMENT_VARIABLES else '...'}"
        yield from (str(each) if paths else each.name for each in (self.venv, self.folder) if each is not None)


def read_variant(name: str, text: str) -> Variant:
    """Parse the description of variant "a" or "b", such as "OMP_NUM_THREADS=2 path/to/venv". Raises UsageError."""
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
    """The process of a variant, which runs its agent. `on_event` is called with the events of its launches."""

    def __init__(self, variant: Variant, on_event: OnEvent) -> None:
        self.variant, self._on_event = variant, on_event
        # The process may print: its libraries, a sitecustomize, or a wrapper script around python.
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
            there = self.call(VariantAgent.identify)
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

    def call(self, method: Callable[Concatenate[Any, P], R], *nothing: P.args, **values: P.kwargs) -> R:
        """Call a method of the variant's agent, and return its result. Raises UsageError if it fails."""
        self.send_request(method, *nothing, **values)
        return cast(R, self.result())

    def send_request(self, method: Callable[Concatenate[Any, P], Any], *nothing: P.args, **values: P.kwargs) -> None:
        """Send the request to call a method of the variant's agent. `result` returns its result."""
        with contextlib.suppress(OSError):  # if the process has ended, `result` reports the reason
            self.connection.send_request(method, *nothing, **values)

    def result(self) -> dict[str, Any]:
        """Wait for the result of a request. Raises UsageError if it fails, or if the process ends."""
        while (result := self.receive()) is None:
            pass
        return result

    def receive(self) -> dict[str, Any] | None:
        """Receive one message. Return the result of a request, or `None` for an event, which is handled.

        Raises UsageError if the request fails, or if the process ends.
        """
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
                self._on_event(self.variant.name, message)
        return None

    def stop(self) -> None:
        """Send SIGTERM. If a launch runs, the process ends its ranks first."""
        self.process.terminate()

    def wait(self) -> None:
        """Wait for the end of the process, and kill it after STOP_S."""
        self.connection.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._printed.close()

    @property
    def _name(self) -> str:
        role, shown = ROLE[self.variant.name], self.variant.shown()
        return f"{role} ({shown})" if shown else role

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


def pass_token(sides: Sequence[VariantProcess], token: Token) -> tuple[int, str] | None:
    """Pass the `token` between two interleaved launches until both have ended.

    Return the index of the variant whose launch failed, and the status of that launch; `None` if both succeeded.
    Raises UsageError if a request fails, or if a process ends.
    """
    left = dict(enumerate(sides))
    # (whether the launch only waited for the other one, the number of earlier failures, the variant, the status)
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
                    # If one launch hangs, both exceed their deadline, but the other one only waits for the token.
                    innocent = result["status"] == Status.HUNG and number not in token.awaited
                    failed.append((innocent, len(failed), number, result["status"]))
    return min(failed)[2:] if failed else None


def end(sides: Sequence[VariantProcess]) -> None:
    """Stop the processes of all variants, and wait for their end."""
    for side in sides:
        side.stop()
    for side in sides:
        side.wait()


@contextlib.contextmanager
def running(variants: list[Variant], on_event: OnEvent) -> Iterator[list[VariantProcess]]:
    """Start a process for each variant. At the end of the block, end them and all processes that they started."""
    adopt_orphans()
    me = psutil.Process()
    others = {child.pid for child in me.children()}
    sides: list[VariantProcess] = []
    try:
        for variant in variants:
            sides.append(VariantProcess(variant, on_event))  # noqa: PERF401 - those that started are ended
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
