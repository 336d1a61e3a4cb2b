"""Waiting for other processes, and not in silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

# The others begin at the same moment, but import torch first; who waits for longer wants to know for whom.
FIRST_S, AGAIN_S = 5.0, 15.0


class Waiting:
    """One wait, from now on, of which the user hears every so often once it has become long."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._next = time.monotonic() + FIRST_S

    def still(self, line: Callable[[], str]) -> None:
        """Nothing has come: say `line()`, if it is time to."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + AGAIN_S
            self._say(line())


def in_words(numbers: Sequence[int]) -> str:
    """As in `rank 3`, or `ranks 1, 4-7`: many in few words. They are in order."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(said)}"
