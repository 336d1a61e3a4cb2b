"""The token that the two interleaved launches of `parabench ab` pass to each other.

Only the ranks of the launch with the token run; the others wait, asleep. Rank 0 waits at a pipe (FIFO), and the
driver holds both pipes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

# The driver's messages to a waiting launch: its turn comes, as the first of the two or the second; or the other launch
# has ended too early.
FIRST, SECOND, ENDED = b"1", b"2", b"!"
# A launch's messages: it is ready for its next turn and done with the one before, or had its last one.
READY, DONE = b".", b"/"


class PartnerEnded(RuntimeError):
    """The launch that this one is interleaved with has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The place of an interleaved launch: `side` "a" or "b" of this `run` of `parabench ab`. `folder` has the pipes."""

    run: str
    side: str
    folder: str

    @property
    def to_launch(self) -> str:
        """The pipe that the launch reads."""
        return os.path.join(self.folder, f"to-{self.side}")

    @property
    def from_launch(self) -> str:
        """The pipe that the launch writes."""
        return os.path.join(self.folder, f"from-{self.side}")


class Partner:
    """Rank 0's end. `first` has for each past turn if it was the first of the two."""

    def __init__(self, pair: Pair) -> None:
        self._to, self._from = os.open(pair.to_launch, os.O_RDONLY), os.open(pair.from_launch, os.O_WRONLY)
        self.first: list[bool] = []

    def next_turn(self) -> None:
        """Pass the token on if this launch has it, and wait until it has it again. Raises PartnerEnded."""
        os.write(self._from, READY)
        message = os.read(self._to, 1)
        if message == ENDED:
            raise PartnerEnded("the launch of the other variant has ended")
        self.first.append(message == FIRST)

    def end(self) -> None:
        """Pass the token on after the last turn."""
        os.write(self._from, DONE)
        os.close(self._from)
        os.close(self._to)


class Token:
    """The driver's end, for sides 0 and 1; a context manager.

    Both sides have each turn, one after the other. The first side of every second round is drawn at random, and the
    other side is first in the next round.
    """

    def __init__(self, pairs: Sequence[Pair], per_round: int, seed: str) -> None:
        self._turns = _order(per_round, random.Random(seed))
        self._done: set[int] = set()
        self._stack = ExitStack()
        # The sides to wait for: the side with the token, or before the first turn, sides that have not reached it.
        self.awaited = {0, 1}
        self.heard_at: list[int] = []
        self._to: list[int] = []
        for pair in pairs:
            for path, ends in ((pair.from_launch, self.heard_at), (pair.to_launch, self._to)):
                os.mkfifo(path)
                # For reading and writing: neither end waits for the other to open it, or fails when that is gone.
                ends.append(os.open(path, os.O_RDWR))
                self._stack.callback(os.close, ends[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def heard(self, side: int) -> None:
        """Read a launch's message, which is at `heard_at` of its side, and pass the token on."""
        if os.read(self.heard_at[side], 1) == DONE:
            self._done.add(side)
        self.awaited -= {side}
        if self.awaited:
            return
        for turn, message in self._turns:
            if len(self._done) == 2:
                # After the last turn no launch waits for the token.
                self.awaited = {0, 1}
                return
            if turn not in self._done:
                self.awaited = {turn}
                os.write(self._to[turn], message)
                return

    def end(self, side: int) -> None:
        """Tell a launch at its next wait that the other one has ended."""
        os.write(self._to[side], ENDED)


def _order(per_round: int, draw: random.Random) -> Iterator[tuple[int, bytes]]:
    """Yield (side, message to it) for each turn, without end."""
    while True:
        first = draw.randrange(2)
        for one in (first, 1 - first):
            for _ in range(per_round):
                yield one, FIRST
                yield 1 - one, SECOND
