"""What a store holds that predictions are made of: what ranks compute alone, what collectives take, and trainings that
a prediction can be held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.launch_number import QUANTILE, device_of
from parabench.analysis.prediction.collective_times import Collective, MeasuredTimes, measured_times
from parabench.analysis.prediction.program import Program, Segment, program_of
from parabench.analysis.session import Session, data_of, select_sessions
from parabench.analysis.stats.quantiles import Numbers
from parabench.analysis.stored import case_of
from parabench.analysis.tables import numbered, valid_launches
from parabench.errors import UsageError
from parabench.plan.case import DEFAULTS, Case
from parabench.store import json_text
from parabench.store.record import CALL
from parabench.store.results import Results
from parabench.strategies import entry_of

# What of a case changes neither what a rank computes nor what it calls, but how that travels.
_TRAVELS = ("algorithm", "nodes", "world_size")

# What makes a measurement another one, whatever else is asked: of several one must be named.
MEASURED_APART = ("device", "model", "seq_len", "precision", "threads", "compile")

# What to do where a store lacks it.
NEEDED = "measure what predictions need: parabench run foresight --out FOLDER"


@dataclass(frozen=True, slots=True)
class Computed:
    """What the ranks of one node of `case`, `per_node` of them, compute alone: a step takes `step_s` in each launch
    that counts. `jitter` are their steps in units of that, each rank by itself, and `own_jitter` in units of the median
    of that rank in that launch. `peak_bytes` is what the rank that holds most held. `program` is the first rank's;
    `others` are those of all other ranks, where they differ. `cores` is how many cores there were to compute on, None
    where a device does that."""

    case: Case
    program: Program
    step_s: tuple[float, ...]
    jitter: Numbers
    peak_bytes: float
    others: tuple[Program, ...] = ()
    cores: int | None = None
    own_jitter: Numbers = field(default_factory=lambda: np.empty(0))

    @property
    def programs(self) -> tuple[Program, ...]:
        """The one that every rank has, or each rank's."""
        return self.program, *self.others

    @property
    def per_node(self) -> int:
        """How many of its ranks computed at the same time."""
        return self.case.world_size // self.case.nodes


@dataclass(frozen=True, slots=True)
class Measured:
    """A training of several ranks that was measured: its step time, in seconds."""

    case: Case
    step_s: float


@dataclass(frozen=True)
class Base:
    """All of it. `device_bytes` is the memory of the device that has least; None where there is none."""

    computed: tuple[Computed, ...]
    collectives: dict[Collective, MeasuredTimes]
    measured: tuple[Measured, ...]
    device_bytes: float | None = None

    @cached_property
    def launch_spread(self) -> float:
        """The standard deviation of the logarithm of a launch's step time, over launches of one case; 0 where each was
        launched once."""
        logs = [np.log(each.step_s) for each in self.computed if len(each.step_s) > 1]
        return math.sqrt(float(np.mean([np.var(each, ddof=1) for each in logs]))) if logs else 0.0

    def spread(self, size: int, nodes: int) -> float:
        """The standard error of the logarithm of what a collective of so many bytes takes, on one node or several, over
        launches: of the size that was measured nearest to it, and of all operations and algorithms alike. 0 where
        everything was launched once."""
        near: dict[int, list[float]] = {}
        for of, times in self.collectives.items():
            if (of.nodes > 1) == (nodes > 1):
                for at, variance in times.variances.items():
                    near.setdefault(at, []).append(variance / times.launches)
        if not near:
            return 0.0
        nearest = min(near, key=lambda at: abs(math.log(at / max(1, size))))
        return math.sqrt(float(np.mean(near[nearest])))


def work_of(case: Case) -> tuple[Any, ...]:
    """What two cases have in common whose ranks compute the same: every field but those that only change how it
    travels, with the samples of a rank for those of a step. Tensor parallel splits what a rank computes by the world
    size, and DDP's buckets are put together from its gradients."""
    entry = entry_of(case.strategy)
    plain: dict[str, Any] = {name: DEFAULTS[name] for name in _TRAVELS}
    plain["global_batch"] = case.global_batch // case.data_ranks
    if entry.takes_caps:
        plain["bucket_mib"] = None
    # Of one micro-batch there is nothing to hold back.
    plain["no_sync"] = case.no_sync or case.grad_accumulation == 1
    # How many ranks share a shard; two_level groups ranks as nodes do.
    shared = case.ranks_per_node or case.world_size // case.nodes if "ranks_per_node" in entry.axes else None
    plain["ranks_per_node"] = None
    split = case.world_size if case.data_ranks == 1 or entry.ranks_differ else 1
    # No case of its own: one rank could not share layers with others.
    return (split, shared, *(case.cells() | plain).values())


def base_of(stores: Sequence[Results]) -> Base:
    """The base that stores hold together; of what was measured more than once the newest. Raises UsageError where none
    tells what ranks compute alone."""
    computed: list[Computed] = []
    measured: list[Measured] = []
    tables: list[dict[Collective, MeasuredTimes]] = []
    room: float | None = None
    for results in stores:
        own = sessions_of(results, "compute")
        computed += [one for each in own for one in _computed(results, each)]
        tables.append(measured_times(results, sessions_of(results, "collectives")))
        measured += trainings(results)
        room = _device_bytes(own) or room
    if not computed:
        there = " and ".join(str(each.path) for each in stores)
        raise UsageError(f"{there} does not tell what a rank computes alone; {NEEDED}")
    backends = {one.case.backend for one in computed}
    return Base(
        computed=tuple({each.case: each for each in computed}.values()),
        collectives={of: each for table in tables for of, each in table.items() if each.backend in backends},
        measured=tuple({each.case: each for each in measured}.values()),
        device_bytes=room,
    )


def sessions_of(results: Results, kind: str) -> list[Session]:
    """The sessions of that kind in a store, oldest first, but for those that took turns with another."""
    return [each for each in select_sessions(results, results.of_kind(kind)) if not each.interleaved]


def trainings(results: Results) -> list[Measured]:
    """The trainings of a store whose step times count, the newest of each case."""
    found: dict[str, Measured] = {}
    for session in sessions_of(results, "training"):
        seen = data_of(results, session)
        for case, step_s in seen.step_times.items():
            if case in seen.planned:
                found[case] = Measured(seen.planned[case], step_s)
    return list(found.values())


def _computed(results: Results, session: Session) -> list[Computed]:
    results = results.of([session.id])
    rows = results.launch
    gpus = {session.id: bool(session.environment.get("gpus"))}
    table = numbered(rows.rename(columns={"id": "launch_id"}), results.steps, gpus)
    good = valid_launches(table)
    peaks = _peaks(results.whole)
    found = []
    for name in dict.fromkeys(good["case_id"].tolist()):
        launches = good[good["case_id"] == name]
        case = case_of(launches["case_json"].iloc[0])
        case = replace(case, device=device_of(case.device, gpus[session.id]))
        told = [json_text.parsed(text) for text in launches["facts"]]
        ids = launches["launch_id"].tolist()
        last = next((each for each in reversed(told) if each.get("program")), None)
        if last is None:
            continue
        apart = entry_of(case.strategy).ranks_differ
        told = last["program"] if apart else last["program"][:1]
        if apart and len(told) < case.world_size:
            continue
        step_s = tuple(launches["launch_step_s"].tolist())
        programs = [program_of(each["events"], case.world_size, last.get("gradients") or ()) for each in told]
        # Work alone, without what calls that do nothing take, in the time that a step takes with no instrument on.
        typical = math.exp(float(np.mean(np.log(step_s))))
        scale = typical / max(
            program.work_s + sum(event[-1] for event in each["events"] if event[0] == CALL)
            for program, each in zip(programs, told, strict=True)
        )
        jitter = [_jitter(results, at, None if apart else each) for at, each in zip(ids, step_s, strict=True)]
        first, *others = (program.scaled(scale) for program in programs)
        peak = max((peaks.get(at, math.nan) for at in ids), default=math.nan)
        cores = session.environment.get("cores") if case.device == "cpu" else None
        own = [_jitter(results, at, None) for at in ids]
        found.append(
            Computed(case, first, step_s, np.concatenate(jitter), peak, tuple(others), cores, np.concatenate(own))
        )
    return found


def _jitter(results: Results, launch: int, step_s: float | None) -> Numbers:
    """The steps of every rank in units of `step_s`; of its own median where that is None."""
    rows = results.read("sample", f"launch_id = {launch} AND metric = 'step_s' AND phase = 'measure'")
    seconds, ranks = np.asarray(rows["value"], dtype=float), np.asarray(rows["rank"])
    if step_s is not None:
        return seconds / step_s
    if not len(seconds):
        return seconds
    found: Numbers = np.concatenate([(own := seconds[ranks == each]) / np.median(own) for each in np.unique(ranks)])
    return found


def _peaks(whole: pd.DataFrame) -> dict[int, float]:
    """The peak of the memory of each launch's ranks: of a device where there is one, else of the process."""
    found: dict[int, float] = {}
    for metric in ("peak_rss_bytes", "peak_allocated_bytes"):
        rows = whole[(whole["metric"] == metric) & (whole["phase"] != "instrument")]
        of_metric: dict[int, float] = {}
        for launch, value in zip(rows["launch_id"].tolist(), rows["value"].tolist(), strict=True):
            of_metric[launch] = max(of_metric.get(launch, 0.0), value)
        found |= {launch: value for launch, value in of_metric.items() if value > 0}
    return found


def _device_bytes(sessions: Sequence[Session]) -> float | None:
    """How much memory the device has that holds least, of the newest session that has some."""
    for session in reversed(sessions):
        sizes = [each.get("memory_bytes") for each in session.environment.get("gpus") or []]
        if known := [float(each) for each in sizes if each]:
            return min(known)
    return None


def slowest(computed: Computed, ranks: int, segments: Sequence[Segment] = ()) -> float:
    """How many times as long the slowest of `ranks` takes as that of those that were measured, at the quantile that a
    step time is: the steps of independent ranks are all at most x with the probability of one, to the power of their
    number.

    Ranks that wait for one another several times a step, between `segments` of it, wait for the slowest of each. Where
    segments vary independently, with variances in proportion to their length, one of a share f of the step varies by
    sqrt(f) of what steps do, and the sum of the slowest is longer than the slowest of the sums.
    """
    q = QUANTILE[computed.case.device]
    if not len(computed.jitter):
        return 1.0

    def of(n: int) -> float:
        return float(np.quantile(computed.jitter, q ** (1 / n)))

    late = of(ranks)
    if segments and len(computed.own_jitter):
        whole_s = sum(each.seconds for each in segments)
        each_waits = sum(math.sqrt(each.seconds / whole_s) * _over_mean(computed, each.ranks) for each in segments)
        late += max(0.0, each_waits - _over_mean(computed, ranks))
    return max(1.0, late / of(computed.per_node))


def _over_mean(computed: Computed, ranks: int) -> float:
    """By how much the slowest of so many ranks' steps is expected to exceed the mean, as a fraction of a step."""
    steps = np.sort(computed.own_jitter)
    # The largest of n draws is at most the i-th of m sorted ones with probability (i / m)^n.
    chances = np.diff((np.arange(len(steps) + 1) / len(steps)) ** ranks)
    return float(chances @ steps - steps.mean())
