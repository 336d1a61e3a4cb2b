"""The token that the launches of two variants pass to each other."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from select import select

import pytest

from guard import GUARD_S
from parabench.launch.token import Pair, Partner, PartnerEnded, Token


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    return [Pair(run="x", side=side, folder=str(tmp_path)) for side in "ab"]


class Launches:
    """Rank 0 of both launches, each in a thread with this number of turns. `had` lists the variant of each turn."""

    def __init__(self, pairs: Sequence[Pair], turns: int) -> None:
        self.had: list[str] = []
        self.first: dict[str, list[bool]] = {}
        self.ended: list[str] = []
        self.threads = [threading.Thread(target=self.run, args=(pair, turns), daemon=True) for pair in pairs]

    def run(self, pair: Pair, turns: int) -> None:
        partner = Partner(pair)
        self.first[pair.side] = partner.first
        try:
            for _ in range(turns):
                partner.next_turn()
                self.had.append(pair.side)
        except PartnerEnded:
            self.ended.append(pair.side)
        partner.end()


def senders(token: Token) -> Iterator[int]:
    """Yield the variant of each message, one at a time."""
    while True:
        ready, _, _ = select(token.inputs, [], [], GUARD_S)
        yield from (token.inputs.index(each) for each in ready[:1])


def test_both_have_each_turn_and_are_first_in_every_other_round(pairs: list[Pair]) -> None:
    rounds, per_round = 6, 3
    with Token(pairs, per_round, "7") as token:
        launches = Launches(pairs, rounds * per_round)
        for each in launches.threads:
            each.start()
        for _, side in zip(range(2 * (rounds * per_round + 1)), senders(token), strict=False):
            token.receive(side)
        for each in launches.threads:
            each.join(GUARD_S)
        # No launch waits for a turn any more.
        assert token.awaited == {0, 1}
    first = launches.first["a"]
    assert launches.first["b"] == [not each for each in first]
    assert launches.had == [side for each in first for side in ("ab" if each else "ba")]
    by_round = [first[at : at + per_round] for at in range(0, len(first), per_round)]
    assert all(len({*each}) == 1 for each in by_round)
    drawn = [each[0] for each in by_round]
    assert [not each for each in drawn[::2]] == drawn[1::2]
    assert len({*drawn[::2]}) == 2  # drawn, not always a


def test_waiting_side_learns_that_the_other_has_ended(pairs: list[Pair]) -> None:
    with Token(pairs, 1, "0") as token:
        launches = Launches(pairs, 1000)
        launches.threads[1].start()
        assert token.awaited == {0, 1}
        token.receive(next(senders(token)))
        assert token.awaited == {0}
        token.end(1)
        launches.threads[1].join(GUARD_S)
    assert launches.ended == ["b"]
    assert launches.had == []
