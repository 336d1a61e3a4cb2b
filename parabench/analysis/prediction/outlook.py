"""What more ranks than a session trained with are predicted to give, where its store tells what ranks compute alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from parabench.analysis.environment.nodes import node_records
from parabench.analysis.prediction.base import Base, Measured, base_of, work_of
from parabench.analysis.prediction.predict import Prediction, Predictor
from parabench.analysis.prediction.question import candidates, cases, most_together
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN
from parabench.analysis.session import SessionData
from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.plan.case import TRAINING, Case, fields_of
from parabench.strategies import entry_of

# How many times the ranks that trained are told of in words.
TIMES = (2, 4, 8)
# As many ranks a curve goes to, and to as many as are told of.
MOST_RANKS = 64

# What trainings that are told of together have in common; how many samples a step has goes with the ranks.
_SAME = tuple(name for name in fields_of(TRAINING) if name != "global_batch")


@dataclass(frozen=True)
class Outlook:
    """What a predictor says of the trainings of one model. `heading` is what sets them apart from the session's others,
    empty where there are none. `asked` is the base of what they compute alone, by strategy one number of samples;
    `trained` are those that were measured. `room` is how many ranks a node of the machine has cores or devices for, 0
    where that is unknown."""

    heading: str
    predictor: Predictor
    asked: Base
    trained: tuple[Measured, ...]
    room: int

    @property
    def most(self) -> int:
        """The largest number of ranks that trained."""
        return max(each.case.world_size for each in self.trained)

    @property
    def next_sizes(self) -> list[int]:
        """The numbers of ranks that come next."""
        return [times * self.most for times in TIMES]

    @cached_property
    def per_node(self) -> int:
        """How many ranks a node had at most."""
        trained = (each.case.world_size // each.case.nodes for each in self.trained)
        return max(most_together(self.asked), *trained)

    @cached_property
    def tiers(self) -> frozenset[str]:
        """Between what ranks links were measured."""
        pairs = [each for each in self.asked.collectives if each.world_size == 2]
        return frozenset(WITHIN if each.nodes == 1 else BETWEEN for each in pairs)

    def ranks_per_node(self, world_size: int) -> int | None:
        """How many of so many ranks a node has; None where they have to send over links that were not measured, or do
        not fill nodes."""
        known = BETWEEN in self.tiers
        here = world_size if world_size <= max(self.per_node, 0 if known else self.room) else self.per_node
        if world_size % here or (world_size > here and not known) or (here > 1 and WITHIN not in self.tiers):
            return None
        return here

    def lacking(self) -> tuple[list[int], list[str]]:
        """(the next numbers of ranks that nothing is told of because links were not measured, which links these are);
        empty where there are none."""
        sizes = [n for n in self.next_sizes if self.ranks_per_node(n) is None]
        sizes = [n for n in sizes if n <= self.per_node or n % self.per_node == 0]
        needed = {WITHIN: self.per_node > 1, BETWEEN: any(n > self.per_node for n in sizes)}
        tiers = [tier for tier, there in needed.items() if there and tier not in self.tiers]
        return (sizes, tiers) if tiers else ([], [])

    def fastest(self, world_size: int) -> Prediction | None:
        """The ranked case that is predicted to need the least time for a sample; None where none is predicted."""
        if world_size not in self._fastest:
            self._fastest[world_size] = self._found_fastest(world_size)
        return self._fastest[world_size]

    @cached_property
    def _fastest(self) -> dict[int, Prediction | None]:
        return {}

    def _found_fastest(self, world_size: int) -> Prediction | None:
        here = self.ranks_per_node(world_size)
        if here is None:
            return None
        ranked = tuple(strategy for strategy in self.strategies if entry_of(strategy).ranked)
        found: list[Prediction] = []
        with suppress(UsageError):  # so many ranks are no case of any strategy
            asked = candidates(self.asked, world_size, here, {"strategy": ranked})
            found = [self.predictor.predict(case) for case in asked]
        return min((each for each in found if each.refused is None), key=lambda each: each.sample_s, default=None)

    @property
    def strategies(self) -> list[str]:
        """The strategies of which it is known what ranks compute: those that trained, the fastest first, then the
        others."""
        known = dict.fromkeys(each.case.strategy for each in self.asked.computed)
        patterns = {strategy: self.pattern(strategy) for strategy in known}
        return sorted(known, key=lambda strategy: _of_a_sample(patterns[strategy]))

    def pattern(self, strategy: str) -> Measured | None:
        """The training of the strategy that a curve of it goes on from: of those with the most ranks the fastest. None
        where none of several ranks was measured that computes what ranks did alone."""
        own = [
            each
            for each in self.trained
            if each.case.strategy == strategy and each.case.world_size > 1 and _key(each.case) in self._keys
        ]
        if not own:
            return None
        return max(own, key=lambda each: (each.case.world_size, -each.step_s))

    def curve(self, strategy: str) -> list[Prediction]:
        """Predictions of a strategy, of one algorithm and bucket size, from the fewest ranks that trained on: at those,
        and at powers of 2, of ranks and of full nodes, at which all links are known."""
        computed = self._of(strategy).computed[0].case
        pattern = self.pattern(strategy)
        like = computed if pattern is None else pattern.case
        values = {"algorithm": like.algorithm, "bucket_mib": like.bucket_mib}
        own_axes = {name: (value,) for name, value in values.items() if name in entry_of(strategy).axes}
        axes: dict[str, tuple[Any, ...]] = {"strategy": (strategy,), **own_axes}
        trained = {} if pattern is None else self._alike(like)
        first, last = min(trained, default=2), max(MOST_RANKS, *self.next_sizes)
        sizes = {unit << power for unit in (1, self.per_node) for power in range(last.bit_length())}
        found: list[Prediction] = []
        for world_size in sorted({size for size in sizes if first <= size <= last} | trained.keys()):
            own = [trained[world_size]] if world_size in trained else self._cases(world_size, axes)
            found += [self.predictor.predict(case) for case in own]
        return found

    def _cases(self, world_size: int, axes: Mapping[str, tuple[Any, ...]]) -> list[Case]:
        """None where links are not known, and where so many ranks are no case of the strategy."""
        here = self.ranks_per_node(world_size)
        with suppress(UsageError):
            return [] if here is None else cases(self.asked, [world_size], axes, here)
        return []

    def _of(self, strategy: str) -> Base:
        return replace(
            self.asked, computed=tuple(each for each in self.asked.computed if each.case.strategy == strategy)
        )

    def _alike(self, pattern: Case) -> dict[int, Case]:
        """By their ranks the trainings that differ from `pattern` in nothing else; of several the fastest."""
        same = [
            each
            for each in self.trained
            if _key(each.case) == _key(pattern)
            and (each.case.algorithm, each.case.bucket_mib) == (pattern.algorithm, pattern.bucket_mib)
        ]
        return {each.case.world_size: each.case for each in sorted(same, key=lambda each: -each.step_s)}

    @cached_property
    def _keys(self) -> set[tuple[Any, ...]]:
        return {_key(each.case) for each in self.asked.computed}


def outlooks(seen: SessionData) -> list[Outlook]:
    """One for each model of a session of trainings of which its store tells what ranks compute alone, in the order of
    its cases; for `SessionData.once`."""
    trained = [Measured(case, seen.step_times[name]) for name, case in seen.planned.items() if name in seen.step_times]
    groups: dict[tuple[Any, ...], list[Measured]] = {}
    for each in trained:
        groups.setdefault(_model(each.case), []).append(each)
    try:
        base = base_of([seen.results.whole_store])
    except UsageError:  # no launch of it succeeded
        return []
    predictor = Predictor(base, {})
    found = []
    for model, group in groups.items():
        asked = _asked(base, model, group)
        if asked.computed:
            apart = [at for at in range(len(_SAME)) if len({each[at] for each in groups}) > 1]
            heading = ", ".join(_said(_SAME[at], model[at]) for at in apart)
            found.append(Outlook(heading, predictor, asked, tuple(group), _room(seen, group[0].case)))
    return found


def _asked(base: Base, model: tuple[Any, ...], trained: list[Measured]) -> Base:
    """The base with what ranks compute of this model: by strategy on as many samples as in training, else on those that
    were measured first."""
    own = [each for each in base.computed if _model(each.case) == model]
    known = {_key(each.case) for each in own}
    chosen: dict[str, tuple[Any, ...]] = {}
    for case in (*(each.case for each in trained), *(each.case for each in own)):
        if _key(case) in known:
            chosen.setdefault(case.strategy, _key(case))
    return replace(base, computed=tuple(each for each in own if _key(each.case) == chosen[each.case.strategy]))


def _model(case: Case) -> tuple[Any, ...]:
    return tuple(getattr(case, name) for name in _SAME)


def _key(case: Case) -> tuple[Any, ...]:
    """What a rank computes, at whatever number of ranks; pipelines choose micro-batches by that."""
    if "microbatches" in entry_of(case.strategy).axes:
        case = replace(case, microbatches=None)
    return work_of(case)[1:]


def _of_a_sample(of: Measured | None) -> float:
    """Seconds for a sample and rank; infinite where nothing was measured."""
    return math.inf if of is None else of.step_s * of.case.world_size / of.case.global_batch


def _said(name: str, value: Any) -> str:
    return str(value) if name in ("model", "data", "precision", "device") else f"{name} {value}"


def _room(seen: SessionData, case: Case) -> int:
    records = node_records(seen.session.environment)
    if case.device == accelerator.TYPE:
        return min(len(one.get("gpus") or []) for one in records)
    return min(int(one.get("cores") or 0) // case.threads for one in records)
