"""Predict step times of configurations that were not measured, with 90% intervals, or explain why that is impossible.

A step is simulated from the recorded actions of a rank (`program`), with collectives over fitted links (`links`).
Measured training runs of few ranks correct the compute time of each strategy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import median
from typing import Any

import numpy as np

from parabench.analysis import format
from parabench.analysis.answer import Answer, columns, keyed, tables
from parabench.analysis.collectives.rounds import BETWEEN, WITHIN
from parabench.analysis.prediction.base import NEEDED, Base, Computed, work_of
from parabench.analysis.prediction.links import Link, Links, links_from_rows
from parabench.analysis.prediction.program import DEFAULT_CAPS, Call, Program, simulated
from parabench.errors import UsageError
from parabench.plan.case import DEFAULTS, Case, ranks_in_words
from parabench.plan.suite import BATCH_PER_RANK
from parabench.store.record import MIB
from parabench.strategies import entry_of

# Half the width of a normal distribution's 90% interval, in standard deviations.
Z90 = 1.645

# The standard deviation of the logarithm of held-out errors (docs/explanation/prediction.md): at the measured number of
# ranks, and for each doubling of it.
SPREAD, SPREAD_OF_DOUBLING = 0.06, 0.01


@dataclass(frozen=True, slots=True)
class Prediction:
    """The step time of a case with its 90% interval, and its parts.

    - `slowest_s`: waiting for the slowest rank
    - `exposed_within_s` and `exposed_between_s`: exposed communication within nodes and between them
    - `peak_bytes`: the peak memory of a rank
    - `notes`: assumptions without a measurement
    """

    case: Case
    step_s: float
    low_s: float
    high_s: float
    compute_s: float
    slowest_s: float
    exposed_within_s: float
    exposed_between_s: float
    peak_bytes: float | None
    measured_s: float | None
    notes: tuple[str, ...]

    @property
    def sample_s(self) -> float:
        """The seconds per sample, to compare cases with different batches."""
        return self.step_s / self.case.global_batch


@dataclass(frozen=True, slots=True)
class Refused:
    """A case that cannot be predicted. `refused` has the reason and a remedy."""

    case: Case
    refused: str


Predicted = Prediction | Refused


def layout_of(call: Call, case: Case) -> tuple[int, int, int]:
    """Return the nodes of a call's group, its ranks on each of them, and the number of such groups on a node."""
    size, stride = len(call.ranks), call.ranks.step
    here = case.world_size // case.nodes
    if case.nodes == 1:
        return 1, size, 1
    # If groups do not fill nodes evenly, the one that is split most is the slowest.
    inside = math.gcd(size, max(1, math.gcd(size * stride, here) // stride))
    return size // inside, inside, min(stride, here) if size > inside else 1


@dataclass(frozen=True)
class Predictor:
    """Predicts step times from the measurements of `base`. `given` has links by tier that replace the fitted ones."""

    base: Base
    given: Mapping[str, Link]

    def predict(self, case: Case) -> Predicted:
        """Return the predicted step time of a case, or the reason why it cannot be predicted."""
        try:
            computed = self.computed(case)
            held, room = computed.peak_bytes or 0, self.base.device_bytes or math.inf
            if case.device != "cpu" and held > room:
                raise UsageError(
                    f"a rank of {case.label} holds {held / 1e9:.1f} GB, and a device has {room / 1e9:.1f} GB; give "
                    "more ranks, a smaller batch, or activation_checkpointing"
                )
            late = computed.slowest(case.world_size)
            links = replace(self.links, given=self.given)
            step_s, compute_s, exposed_s = self._step(
                case, computed, links, late * self.correction.get(case.strategy, 1.0)
            )
        except UsageError as error:
            return Refused(case, str(error))
        trained = (each.world_size for each in self.base.measured if each.strategy == case.strategy)
        doublings = math.log2(max(1.0, case.world_size / max([2, *trained])))
        factor = math.exp(Z90 * math.hypot(SPREAD, SPREAD_OF_DOUBLING * doublings))
        return Prediction(
            case=case,
            step_s=step_s,
            low_s=step_s / factor,
            high_s=step_s * factor,
            compute_s=compute_s / late,
            slowest_s=compute_s * (1 - 1 / late),
            exposed_within_s=exposed_s.get(WITHIN, 0.0),
            exposed_between_s=exposed_s.get(BETWEEN, 0.0),
            peak_bytes=computed.peak_bytes,
            measured_s=self.base.measured.get(case),
            notes=tuple(self._notes(case, computed)),
        )

    def computed(self, case: Case) -> Computed:
        """Return the compute-only run whose rank has the same work as a rank of the case.

        If there are several, the number of ranks is the most similar one. Raises UsageError if there is none.
        """
        if entry_of(case.strategy).ranks_differ:
            raise UsageError(f"{case.strategy} is not predicted, because its ranks do different things")
        work = work_of(case)
        found = [each for each in self.base.computed if work_of(each.case) == work]
        if not found:
            raise UsageError(
                f"the work of a rank of {case.strategy} among {ranks_in_words(case.world_size, case.nodes)}, with "
                f"{case.global_batch // case.data_ranks} samples, was not measured; {NEEDED} {' '.join(_asked(case))}"
            )
        per_node = case.world_size // case.nodes
        return min(
            found,
            key=lambda each: (
                abs(math.log(each.per_node / per_node)), abs(math.log(each.case.world_size / case.world_size)),
            ),
        )  # fmt: skip

    def _step(
        self, case: Case, computed: Computed, links: Links, slower: float
    ) -> tuple[float, float, dict[str, float]]:
        """Return the seconds of a step, of its computing, and of exposed communication by tier of links.

        Computing takes `slower` times as long as in compute-only runs.
        """

        @cache
        def takes(call: Call) -> tuple[float, str]:
            nodes, inside, groups = layout_of(call, case)
            seconds = links.seconds(call.op, case.algorithm, nodes * inside, inside, call.bytes, groups)
            return seconds, BETWEEN if nodes > 1 else WITHIN

        program = _program(case, computed)
        step_s, exposed_s = simulated(program, takes, slower)
        return step_s, slower * program.work_s, exposed_s

    @cached_property
    def links(self) -> Links:
        """The links that fit the collectives."""
        return Links(links_from_rows(self.base.rows, self.base.backend), {}, self.base.backend)

    @cached_property
    def correction(self) -> dict[str, float]:
        """The compute time in training runs on one node, relative to compute-only runs, by strategy."""
        logs: dict[str, list[float]] = {}
        for case, measured_s in self.base.measured.items():
            if case.nodes > 1 or case.world_size == 1:
                continue
            try:
                step_s, compute_s, _ = self._step(case, self.computed(case), self.links, 1.0)
            except UsageError:
                continue
            longer = max(measured_s - (step_s - compute_s), compute_s / 2) / compute_s
            logs.setdefault(case.strategy, []).append(math.log(longer))
        return {strategy: math.exp(float(np.mean(each))) for strategy, each in logs.items()}

    def _notes(self, case: Case, computed: Computed) -> Iterator[str]:
        """Yield the assumptions of a prediction that no measurement supports."""
        here, ranks = case.world_size // case.nodes, computed.case.world_size
        if computed.per_node != here:
            yield f"{ranks_in_words(here, 1)} on a node, and compute time was measured with {computed.per_node}"
        far = max(ranks, case.world_size) > 2 * min(ranks, case.world_size)
        if far and not computed.program.gradients:
            yield f"compute time and memory of a rank were measured with {ranks} ranks"
        if case.strategy not in self.correction:
            yield f"no training run of {case.strategy} was measured to correct this"


def _program(case: Case, computed: Computed) -> Program:
    """Return the program of a rank of the case. Raises UsageError for bucket caps that cannot be applied."""
    program = computed.program.among(case.world_size)
    if not entry_of(case.strategy).takes_caps:
        return program
    if not program.gradients:
        if case.bucket_mib != computed.case.bucket_mib:
            raise UsageError(
                f"gradients of {computed.case.label} were not timed (with grad_accumulation they are not), so other "
                "bucket caps cannot be predicted; leave bucket_mib out"
            )
        return program
    caps = case.bucket_caps or ((case.bucket_cap,) if case.bucket_cap is not None else None)
    return program.with_caps([round(cap * MIB) for cap in caps] if caps else DEFAULT_CAPS)


def _asked(case: Case) -> Iterator[str]:
    """Yield the options of `parabench run calibration` that measure the compute time of the case's ranks."""
    plain = {"algorithm", "bucket_mib", "nodes", "ranks_per_node", "device", "backend", "data", "no_sync"}
    for name, value in case.to_dict().items():
        # Models without sequences have samples of length 1.
        follows = value == DEFAULTS[name] or value is None or (name == "seq_len" and value == 1)
        if name == "global_batch" and case.data_ranks == case.world_size:
            # Training runs of fewer ranks have the same number of samples per rank.
            yield f"--set {BATCH_PER_RANK}={value // case.data_ranks}"
        elif name in ("strategy", "world_size", "global_batch") or not (name in plain or follows):
            yield f"--set {name}={str(value).lower() if isinstance(value, bool) else value}"


# ---- in words, and as an answer


def predicted(answers: Iterable[Predicted]) -> list[Prediction]:
    """Return the answers that are predictions."""
    return [each for each in answers if isinstance(each, Prediction)]


def interval(each: Prediction) -> str:
    """Return a predicted step time with its interval: '21.3 ms (90%: 19.8 to 22.9)'."""
    return f"{format.milliseconds(each.step_s)} (90%: {format.milliseconds_between(each.low_s, each.high_s)})"


def table(answers: Sequence[Predicted]) -> Iterator[str]:
    """Yield the lines of a table of the predictions, the fastest first."""
    rows = [
        (
            each.case.label,
            format.digits(each.step_s * 1e3),
            format.milliseconds_between(each.low_s, each.high_s),
            *(format.digits(each_s * 1e3) for each_s in (each.compute_s, each.slowest_s, each.exposed_within_s,
                                                         each.exposed_between_s)),
            format.UNKNOWN if each.peak_bytes is None else f"{format.digits(each.peak_bytes / 1e9)} GB",
        )
        for each in sorted(predicted(answers), key=lambda each: each.step_s)
    ]  # fmt: skip
    if rows:
        parts = ("compute", "slowest", "in a node", "between nodes")
        yield from format.aligned([("configuration", "step, ms", "90% interval", *parts, "memory"), *rows])
        yield "All times in ms."


def notes(answers: Sequence[Predicted]) -> list[str]:
    """Return lines with the assumptions, the fastest case first, and with the reasons of refusals."""
    known = sorted(predicted(answers), key=lambda each: each.step_s)
    return [*_grouped("note", ((note, each.case) for each in known for note in each.notes)), *refusals(answers)]


def refusals(answers: Iterable[Predicted]) -> list[str]:
    """Return a line for each reason why cases cannot be predicted."""
    refused = ((each.refused, each.case) for each in answers if isinstance(each, Refused))
    return _grouped("Not predicted", refused)


def _grouped(kind: str, texts: Iterable[tuple[str, Case]]) -> list[str]:
    """Return a line for each text, with its cases. Texts that differ only in numbers share the line of the first."""
    found: dict[str, tuple[str, list[Case]]] = {}
    for text, case in texts:
        found.setdefault(re.sub(r"\d+", "", text), (text, []))[1].append(case)
    return [f"{kind}: {_named(cases)}: {text}" for text, cases in found.values()]


def _named(cases: Iterable[Case]) -> str:
    """Return the names of configurations: 'ddp native, 4 ranks on 2 nodes; ...; and 2 more'."""
    return format.listed((case.label for case in cases), most=3)


def best_lines(answers: Sequence[Predicted]) -> Iterator[str]:
    """Yield sentences about the case with the least time per sample, and about cases that may be as fast."""
    known = sorted(predicted(answers), key=lambda each: each.sample_s)
    if known:
        best, *rest = known
        yield f"{best.case.world_size} ranks: {best.case.label} is expected to be the fastest: {interval(best)}."
        level = [each.case for each in rest if each.low_s / each.case.global_batch <= best.sample_s]
        if level:
            yield f"{len(level)} of {len(rest)} other configurations may be as fast: {_named(level)}."
    yield from refusals(answers)


def check_table(answers: Sequence[Predicted], measured: Mapping[Case, float]) -> Iterator[str]:
    """Yield the lines of a table of predicted and measured step times."""
    rows = [
        (
            each.case.label,
            format.digits(measured[each.case] * 1e3),
            format.digits(each.step_s * 1e3),
            format.milliseconds_between(each.low_s, each.high_s),
            format.signed(each.step_s / measured[each.case] - 1),
            "" if each.low_s <= measured[each.case] <= each.high_s else "outside",
        )
        for each in predicted(answers)
    ]
    if rows:
        head = ("configuration", "measured, ms", "predicted, ms", "90% interval", "error", "")
        yield from format.aligned([head, *rows])


def errors(answers: Sequence[Predicted], measured: Mapping[Case, float]) -> Iterator[str]:
    """Yield a summary of the errors, and the reasons of refusals."""
    pairs = [(each, measured[each.case]) for each in predicted(answers)]
    if pairs:
        error = median(abs(math.log(each.step_s / measured_s)) for each, measured_s in pairs)
        inside = sum(each.low_s <= measured_s <= each.high_s for each, measured_s in pairs)
        yield (
            f"Half of {format.count(len(pairs), 'prediction')} are within {format.percent(error)} of the "
            f"measurement; {inside} of {len(pairs)} measurements are in their 90% interval."
        )
    yield from refusals(answers)


_CASE = {"case_id": str, "label": str, **columns(Case)}
# The tables of the answer.
TABLES = {
    "predictions": columns(Prediction, **_CASE),
    "refused": columns(Refused, **_CASE),
}


def answer(asked: Sequence[Predicted], sentences: Sequence[str]) -> Answer:
    """Return the answer of `predict`."""
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for each in asked:
        fields = {name: getattr(each.case, name) for name in _CASE if name != "case_id"}
        rows["refused" if isinstance(each, Refused) else "predictions"] += keyed([each], case_id=each.case.id, **fields)
    return Answer(tuple(sentences), tables(TABLES, rows))
