"""The number of a launch in which cases took turns: how its steps compare with those of the others, round by round.

What changes while a launch runs (another process comes, a clock falls) hits the turns of one round alike, so each turn
is compared with its round, and the rounds are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from parabench.plan.turns import TurnsProtocol
from parabench.store import json_text
from parabench.store.frames import Array
from parabench.store.record import Status

if TYPE_CHECKING:
    from parabench.analysis.session import SessionData

# What the facts hold, as JSON, of a launch that several cases shared.
IN_TURNS = '"turns": {'
# The share of rounds that count for nothing at each end: a turn into which another process came is no measure of its
# case. On two quiet cores (12 cases and a twin, 6 launches of 20 rounds) a launch's number had a standard deviation of
# 2.4 % with it, 2.4 % with none, 2.6 % with 0.2 and 3.1 % with the median of rounds.
TRIMMED = 0.1


def turns_told(facts: pd.Series[str]) -> Array:
    """What the facts tell of each launch's turns; None of one that had its processes to itself."""
    found = np.empty(len(facts), dtype=object)
    found[:] = [json_text.parsed(text)["turns"] if IN_TURNS in (text or "") else None for text in facts.tolist()]
    return found


def shared_launches(ids: Array, in_turns: Array, session: Any, block: Any, told: Array) -> Array:
    """Of each launch the id of the first of those that took their turns in the same processes, its own where it had
    them to itself. Launches are given by their rising `ids`, whether they were `in_turns`, columns of the store, and
    what was `told` of their turns."""
    first: dict[tuple[Any, ...], int] = {}
    found = ids.copy()
    for at in np.flatnonzero(in_turns).tolist():
        key = int(np.asarray(session)[at]), int(block[at]), *told[at]["cases"]
        found[at] = first.setdefault(key, int(ids[at]))
    return found


def pair_launches(ids: Array, case: Array, block: Array, told: Array) -> Array:
    """Of each launch, given as for `shared_launches`, the id of the first of the two that took turns as the sides of an
    `ab`; its own of every other."""
    first: dict[tuple[Any, ...], int] = {}
    found = ids.copy()
    for at, turns in enumerate(told.tolist()):
        if turns is not None and "pair" in turns:
            key = turns["pair"]["run"], int(block[at]), case[at]
            found[at] = first.setdefault(key, int(ids[at]))
    return found


def turn_counts(in_turns: Array, told: Array) -> Array:
    """How many turns the number of each launch is made of; 1 of one by itself."""
    found = np.ones(len(told))
    found[in_turns] = [turns["protocol"]["rounds"] for turns in told[in_turns]]
    return found


def paired_numbers(
    ids: Array, in_turns: Array, shared_launch: Array, seconds: Array, told: Array, steps: pd.DataFrame
) -> Array:
    """Each launch's number in seconds, made of its rounds where it took turns to its end with others, else that of
    `seconds`, which it has by itself; `steps` is as `Results.steps` has it.

    The mean of the numbers of a shared launch, on the log scale, stays what it is: its level is that of the launch. Of
    two sides of an `ab` it is given as `pair_launches` has it: then the numbers differ by what their rounds do.
    """
    values, of = np.asarray(steps["step_s"], dtype=float), np.asarray(steps["launch_id"])
    begin, end = np.searchsorted(of, ids), np.searchsorted(of, ids, side="right")
    found = np.array(seconds, dtype=float)
    for first in np.unique(shared_launch[in_turns]).tolist():
        group = np.flatnonzero(in_turns & (shared_launch == first))
        protocol = TurnsProtocol.from_dict(told[group[0]]["protocol"])
        own = {at: values[begin[at] : end[at]] for at in group.tolist()}
        timed = {at: protocol.rounds * protocol.timed_of(told[at]["place"]) for at in own}
        whole = [at for at, each in own.items() if each.size == timed[at] and np.isfinite(each).all()]
        if len(whole) < 2:
            continue
        numbers = compared(np.array([turn_numbers(np.log(own[at]), protocol) for at in whole]))
        found[whole] = np.exp(numbers + np.log(found[whole]).mean())
    return found


def turn_numbers(steps: Array, protocol: TurnsProtocol) -> Array:
    """Return the number of each turn of a case, the median of its timed `steps`, which are logarithms."""
    medians: Array = np.median(steps.reshape(protocol.rounds, -1), axis=1)
    return medians


def compared(turns: Array) -> Array:
    """How each case's turns differ from those of all: `turns` are logarithms, a row a case, a column for what is
    compared; TRIMMED of the columns at each end do not count. The mean over cases is 0."""
    apart = np.sort(turns - turns.mean(axis=0), axis=1)
    cut = int(TRIMMED * apart.shape[1])
    numbers = apart[:, cut : apart.shape[1] - cut].mean(axis=1)
    centred: Array = numbers - numbers.mean()
    return centred


@dataclass(frozen=True)
class SharedLaunch:
    """The turns of a launch that cases shared: `names` by place, `rows` the places whose steps are known, and the
    numbers of their `turns`, which are logarithms, of shape (rows, rounds)."""

    names: tuple[str, ...]
    protocol: TurnsProtocol
    rows: tuple[int, ...]
    turns: Array

    @property
    def cases(self) -> list[str]:
        """The cases of `rows`."""
        return [self.names[place] for place in self.rows]


def shared_launches_of(seen: SessionData) -> list[SharedLaunch]:
    """Return the successful launches of a session that cases shared, with the cases whose steps are all known."""
    table = seen.results.launch
    own = table["status"] == Status.OK
    groups: dict[tuple[Any, ...], dict[int, int]] = {}
    told: dict[tuple[Any, ...], dict[str, Any]] = {}
    for at, turns in zip(table["id"][own].tolist(), turns_told(table["facts"][own]), strict=True):
        if turns is not None:
            key = turns["protocol"]["seed"], *turns["cases"]
            told[key] = turns
            groups.setdefault(key, {})[turns["place"]] = at
    if not groups:
        return []
    steps = _by_launch(seen.results.steps)
    found = []
    for key, places in groups.items():
        protocol = TurnsProtocol.from_dict(told[key]["protocol"])
        timed = {place: steps.get(at, np.empty(0)) for place, at in sorted(places.items())}
        whole = {
            place: turn_numbers(each, protocol)
            for place, each in timed.items()
            if len(each) == protocol.rounds * protocol.timed_of(place) and np.isfinite(each).all()
        }
        if len(whole) > 1:
            turns = np.array(list(whole.values()))
            found.append(SharedLaunch(tuple(told[key]["cases"]), protocol, tuple(whole), turns))
    return found


def _by_launch(steps: Any) -> dict[int, Array]:
    """The logarithms of each launch's steps, in their order."""
    ids, first = np.unique(steps["launch_id"], return_index=True)
    # Of no steps there is one part too, of no launch.
    return dict(zip(ids.tolist(), np.split(np.log(steps["step_s"].to_numpy()), first[1:]), strict=False))
