"""The newest page of a store: made anew when the store has changed, one at a time, and so seldom that a run hardly
feels it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parabench.errors import UsageError
from parabench.files import launch_folder, temporary_folder
from parabench.serve.progress import Standing

# While a run goes on, making pages may take one part in so many of the time of one core.
SHARE = 10


@dataclass(frozen=True)
class Page:
    """A page as text, with what it was made from: the standing's stamp, and how many launches."""

    text: str
    stamp: str
    launches: int


# (store, session) -> the page's text. Raises UsageError, in one line, where there can be none.
Make = Callable[[Path, str], str]


class Renewal:
    """The newest page that `make` made, and why there is no newer one.

    A page costs seconds, which the run that is shown would lack, and the page would show a step slower than it was.
    So one is made only when somebody looks, apart from what answers, and not sooner than SHARE times its duration
    after the one before.
    """

    def __init__(self, make: Make, clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self._lock = threading.Lock()
        self._making: threading.Thread | None = None
        self._tried, self._not_before = "", 0.0
        self.newest: Page | None = None
        self.error = ""

    @property
    def making(self) -> bool:
        return self._making is not None and self._making.is_alive()

    def look(self, store: Path, now: Standing, template: str = "") -> None:
        """Somebody looks, and the store stands so: have a page made of it, if there is none and its time has come.

        `template` is a stamp of what else the page is made from."""
        stamp = f"{now.stamp}{template}"
        with self._lock:
            if not now.stamp or self.making or stamp == self._tried:
                return
            if now.going and self._clock() < self._not_before:
                return
            self._tried = stamp
            self._making = threading.Thread(target=self._renew, args=(store, now, stamp), daemon=True)
            self._making.start()

    def wait(self) -> None:
        """Until what is being made is there."""
        if self._making is not None:
            self._making.join()

    def _renew(self, store: Path, now: Standing, stamp: str) -> None:
        began = self._clock()
        try:
            self.newest, self.error = Page(self._make(store, now.session), stamp, now.launches), ""
        except UsageError as error:
            self.error = str(error)
        except OSError as error:  # no room for the page, no process to make it in: that may pass
            self.error = f"no page could be made: {error.strerror or error}; it is tried again"
            self._tried = ""
        self._not_before = self._clock() + SHARE * (self._clock() - began)


class Child:
    """Makes pages with `parabench report` in a process of its own, which steps back behind everything else: the run
    that is measured, and the server, which shares no interpreter with it."""

    def __init__(self, template: Path | None) -> None:
        self._template = template
        self._process: subprocess.Popen[str] | None = None
        self._ended = False

    def __call__(self, store: Path, session: str) -> str:
        """The page. Raises UsageError with the line that the report said."""
        # On a disk: it is large, and memory is the ranks'.
        with launch_folder(temporary_folder()) as folder:
            page = folder / "report.html"
            command = [sys.executable, "-m", "parabench", "report", f"{store}@{session}", "-o", str(page)]
            if self._template is not None:
                command += ["--template", str(self._template)]
            # A session of its own: Ctrl-C is for the server, which ends it then.
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
            if self._ended:
                self._process.kill()
            _, said = self._process.communicate()
            if self._process.returncode or not page.is_file():
                last = said.strip().splitlines()[-1:] or [f"exit code {self._process.returncode}"]
                raise UsageError(last[0].removeprefix("parabench: "))
            return page.read_text(encoding="utf-8")

    def end(self) -> None:
        self._ended = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
