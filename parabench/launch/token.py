"""Let two launches of `parabench ab` take turns: one runs a few steps while the other one waits, asleep.

The launch with the token runs. Rank 0 of each launch and the driver exchange messages through two pipes (FIFOs).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

# The driver's messages to a waiting launch: its turn starts, as the first or the second of the two launches; or the
# other launch has ended too early.
FIRST, SECOND, ENDED = b"1", b"2", b"!"
# A launch's messages: it waits for its next turn, or it has finished its last turn.
READY, DONE = b".", b"/"


class PartnerEnded(RuntimeError):
    """The launch of the other variant has ended, so this launch gets no turn any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The pipes between the driver and a launch that is interleaved with another one."""

    run: str  # identifies the run of `parabench ab`; both launches record it
    side: str  # the variant, "a" or "b"
    folder: str  # the folder of the pipes

    @property
    def to_launch(self) -> str:
        """The path of the pipe from the driver to the launch."""
        return os.path.join(self.folder, f"to-{self.side}")

    @property
    def from_launch(self) -> str:
        """The path of the pipe from the launch to the driver."""
        return os.path.join(self.folder, f"from-{self.side}")


class Partner:
    """The token on the side of rank 0, which waits for the turns of its launch.

    `first` has one value for each past turn: True if this launch had the turn before the other launch.
    """

    def __init__(self, pair: Pair) -> None:
        self._to, self._from = os.open(pair.to_launch, os.O_RDONLY), os.open(pair.from_launch, os.O_WRONLY)
        self.first: list[bool] = []

    def next_turn(self) -> None:
        """End the current turn, if any, and wait for the next one. Raises PartnerEnded."""
        os.write(self._from, READY)
        message = os.read(self._to, 1)
        if message == ENDED:
            raise PartnerEnded("the launch of the other variant has ended")
        self.first.append(message == FIRST)

    def end(self) -> None:
        """End the last turn, and close the pipes."""
        os.write(self._from, DONE)
        os.close(self._from)
        os.close(self._to)


class Token:
    """The token on the side of the driver, which lets the launches of variants 0 and 1 alternate.

    A round has `per_round` turns of each launch. In every second round, the launch with the first turn is drawn at
    random; in the next round, the other launch has it.
    """

    def __init__(self, pairs: Sequence[Pair], per_round: int, seed: str) -> None:
        self._turns = _order(per_round, random.Random(seed))
        self._done: set[int] = set()
        self._stack = ExitStack()
        # The variants whose next message the driver waits for: the variant that runs; or, before the first turn, each
        # variant that is not ready yet.
        self.awaited = {0, 1}
        # The file descriptor of the messages of each variant.
        self.inputs: list[int] = []
        self._outputs: list[int] = []
        for pair in pairs:
            for path, ends in ((pair.from_launch, self.inputs), (pair.to_launch, self._outputs)):
                os.mkfifo(path)
                # For reading and writing: neither end waits for the other to open it, or fails when that is gone.
                ends.append(os.open(path, os.O_RDWR))
                self._stack.callback(os.close, ends[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def receive(self, variant: int) -> None:
        """Read the message in `inputs[variant]`, and start the next turn if no other message is awaited."""
        if os.read(self.inputs[variant], 1) == DONE:
            self._done.add(variant)
        self.awaited -= {variant}
        if self.awaited:
            return
        for turn, message in self._turns:
            if len(self._done) == 2:
                # After the last turn no launch waits for the token.
                self.awaited = {0, 1}
                return
            if turn not in self._done:
                self.awaited = {turn}
                os.write(self._outputs[turn], message)
                return

    def end(self, variant: int) -> None:
        """Let the launch of this variant fail with PartnerEnded when it waits for its next turn."""
        os.write(self._outputs[variant], ENDED)


def _order(per_round: int, draw: random.Random) -> Iterator[tuple[int, bytes]]:
    """Yield (variant, FIRST or SECOND) for each turn of a launch, without end."""
    while True:
        first = draw.randrange(2)
        for one in (first, 1 - first):
            for _ in range(per_round):
                yield one, FIRST
                yield 1 - one, SECOND
