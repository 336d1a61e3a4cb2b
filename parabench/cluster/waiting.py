"""Waiting for others, with a limit and a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from parabench.errors import runs

AGAIN_S = 15.0


class Waiting:
    """A wait of at most `seconds` from now on. Lines are logged after `first_s`, then every AGAIN_S."""

    def __init__(self, log: Callable[[str], None], seconds: float, first_s: float = 0.0) -> None:
        self._log = log
        now = time.monotonic()
        self._until, self._next = now + seconds, now + first_s

    @property
    def left_s(self) -> float:
        """The time that is left, in seconds."""
        return max(0.0, self._until - time.monotonic())

    def still(self, line: str) -> None:
        """Log the line if it is time to."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + AGAIN_S
            self._log(line)


def numbered(unit: str, numbers: Sequence[int]) -> str:
    """Return numbers as `rank 3`, or `ranks 1, 4-7`."""
    return f"{unit}{'s' * (len(numbers) > 1)} {runs(numbers)}"
