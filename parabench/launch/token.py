"""The token that two launches pass to each other, the sides of `parabench ab`: the ranks of the one that has it run,
and those of the other wait without using a core, nor their devices: who hands it on has waited for those.

Rank 0 of each launch waits for the token at a pipe (FIFO) of its own, and the other ranks wait for rank 0. The driver
has both pipes open, hands the token on, and can end the waiting of a launch whose partner is gone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

# What the driver says to a launch that waits: it has the turn, as the first of the two or the second; or the other
# launch has ended too early.
FIRST, SECOND, ENDED = b"1", b"2", b"!"
# What a launch says: it is ready for its next turn and done with the one before, or had its last one.
READY, DONE = b".", b"/"


class PartnerEnded(RuntimeError):
    """The launch that this one takes turns with has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What a launch is that takes turns with another: `side` "a" or "b" of this `run` of `parabench ab`. The pipes are
    in `folder`."""

    run: str
    side: str
    folder: str

    @property
    def to_launch(self) -> str:
        """The pipe at which the launch waits."""
        return os.path.join(self.folder, f"to-{self.side}")

    @property
    def from_launch(self) -> str:
        """The pipe at which the driver hears it."""
        return os.path.join(self.folder, f"from-{self.side}")


class Partner:
    """Rank 0's end. `first` says of each turn that it had whether it was the first of the two."""

    def __init__(self, pair: Pair) -> None:
        self._to, self._from = os.open(pair.to_launch, os.O_RDONLY), os.open(pair.from_launch, os.O_WRONLY)
        self.first: list[bool] = []

    def next_turn(self) -> None:
        """Hand the token on where this launch has it, and wait until it has it again. Raises PartnerEnded."""
        os.write(self._from, READY)
        said = os.read(self._to, 1)
        if said == ENDED:
            raise PartnerEnded("the launch of the other side has ended")
        self.first.append(said == FIRST)

    def end(self) -> None:
        """Hand the token on after the last turn."""
        os.write(self._from, DONE)
        os.close(self._from)
        os.close(self._to)


class Token:
    """The driver's end, for sides 0 and 1. To be closed, as a context.

    Each turn is had by both, one after the other. Who is first is drawn for every second round, of `per_round` turns,
    and is the other one in the next: what is gained or lost by the place, both gain or lose equally often.
    """

    def __init__(self, pairs: Sequence[Pair], per_round: int, seed: str) -> None:
        self._turns = _order(per_round, random.Random(seed))
        self._done: set[int] = set()
        self._stack = ExitStack()
        # Whom the other waits for: the side that has the token, and before the first turn whoever has not come to it.
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
        """A launch has said something, for `heard_at` of its side can be read: hand the token on."""
        if os.read(self.heard_at[side], 1) == DONE:
            self._done.add(side)
        self.awaited -= {side}
        if self.awaited:
            return
        for turn, said in self._turns:
            if len(self._done) == 2:
                # What follows the last turn nobody waits for.
                self.awaited = {0, 1}
                return
            if turn not in self._done:
                self.awaited = {turn}
                os.write(self._to[turn], said)
                return

    def end(self, side: int) -> None:
        """Let a launch know, the next time that it waits, that the other one has ended."""
        os.write(self._to[side], ENDED)


def _order(per_round: int, draw: random.Random) -> Iterator[tuple[int, bytes]]:
    """Whose turn it is, and what it is told, without end."""
    while True:
        first = draw.randrange(2)
        for one in (first, 1 - first):
            for _ in range(per_round):
                yield one, FIRST
                yield 1 - one, SECOND
