"""What a step would take that nobody measured, how sure that is, and what would have to be measured to tell.

A step is the program of a rank (`program`), its collectives as long as tables or schedules say (`network`), in a
simulation where computing and communicating slow each other down (`simulation`). Two things are taken from trainings of
few ranks that were measured: by how much both slow each other down, and how much longer a rank computes than alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parabench.analysis.prediction import naive
from parabench.analysis.prediction.base import NEEDED, Base, Computed, Measured, slowest, work_of
from parabench.analysis.prediction.collective_seconds import CollectiveSeconds, Place
from parabench.analysis.prediction.correction import (
    ALONE,
    FREE,
    NONE,
    Contention,
    Correction,
    Costs,
    calls_spread,
    expected_costs,
    kind_of,
    likeliest,
    likeliest_contention,
    squares,
)
from parabench.analysis.prediction.network import Link
from parabench.analysis.prediction.program import DEFAULT_CAPS, Call, Program, Times, tasks
from parabench.analysis.prediction.simulation import parts_of, simulate
from parabench.collectives import is_backends
from parabench.errors import UsageError
from parabench.plan.case import DEFAULTS, Case, ranks_in_words
from parabench.plan.suite import BATCH_PER_RANK
from parabench.store.record import MIB
from parabench.strategies import entry_of

# Half the width of a normal distribution's 90 % interval, in standard deviations.
Z90 = 1.645

# What a prediction is off by besides what launches tell, as a standard deviation of its logarithm: of held-out cases on
# emulated machines (docs/explanation/foresight.md), at the ranks that were measured and for each doubling of them.
MODEL_SPREAD, SPREAD_OF_DOUBLING = 0.05, 0.01

_NUMBER = re.compile(r"\d+")

# No step is told that takes longer.
LONGEST_S = 1e10


# More say nothing new, and each is simulated some hundred times.
MOST_JUDGES = 4

# gloo has two threads for the collectives of a group (c10d's ProcessGroupGloo), and broadcasts of several roots, as
# ZeRO's, take other links each.
BROADCASTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a case would take: `step_s` with its 90 % interval, and what of it is `compute_s`, `slowest_s` waiting for
    the slowest rank, `exposed_s` communication by tier that nothing hides, and `bubble_s` waiting for other ranks of a
    pipeline; of its ranks that which computes longest is told of. `peak_bytes` is what a rank holds.

    `constant_s` and `line_s` are naive forecasts: the same throughput a rank as at the most ranks that were measured,
    and a line of it in log2 of the ranks; None where that was not measured. `refused` is why nothing is predicted, with
    what to measure; `notes` say what was not measured and was taken for granted.
    """

    case: Case
    step_s: float = math.nan
    low_s: float = math.nan
    high_s: float = math.nan
    compute_s: float = math.nan
    slowest_s: float = math.nan
    exposed_s: Mapping[str, float] | None = None
    bubble_s: float = math.nan
    peak_bytes: float | None = None
    constant_s: float | None = None
    line_s: float | None = None
    measured_s: float | None = None
    refused: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def sample_s(self) -> float:
        """Seconds for a sample of the step: what cases of different batches are compared by."""
        return self.step_s / self.case.global_batch


@dataclass(frozen=True)
class Predictor:
    """Predictions from a base. `links` are tiers that were given instead of measured. `instead` is what ranks of the
    predicted cases compute, where that is not what those of the base's trainings do."""

    base: Base
    links: Mapping[str, Link]
    instead: tuple[Computed, ...] = ()

    @cached_property
    def collectives(self) -> CollectiveSeconds:
        """What collectives take."""
        return CollectiveSeconds(self.base.collectives, self.links)

    def predict(self, case: Case) -> Prediction:
        """The prediction of a case on `case.nodes` nodes; refused where something is not known."""
        try:
            computed = self.computed(case)
            self._check_memory(case, computed)
            step = self._step(case, computed)
            peak = computed.peak_bytes
        except UsageError as error:
            return Prediction(case=case, refused=str(error))
        if step.step_s > LONGEST_S:
            return Prediction(case=case, refused="a step would take centuries; give fewer ranks, or a faster link")
        spread = self._spread(case, computed, step)
        forecasts = naive.forecasts(case, self.base.measured)
        return Prediction(
            case=case,
            step_s=step.step_s,
            low_s=step.step_s * math.exp(-Z90 * spread),
            high_s=step.step_s * math.exp(Z90 * spread),
            compute_s=step.compute_s,
            slowest_s=step.slowest_s,
            exposed_s=step.exposed_s,
            bubble_s=step.bubble_s,
            peak_bytes=peak if math.isfinite(peak) else None,
            constant_s=forecasts.constant_s,
            line_s=forecasts.line_s,
            measured_s=next((each.step_s for each in self.base.measured if each.case == case), None),
            notes=tuple(self._notes(case, computed)),
        )

    def computed(self, case: Case) -> Computed:
        """What a rank of the case computes: of those that were measured the one whose node is most like the case's,
        then of the nearest number of ranks. Raises UsageError where there is none."""
        work = work_of(case)
        found = [each for each in self.instead or self.base.computed if work_of(each.case) == work]
        if not found:
            raise UsageError(
                f"what a rank of {case.strategy} computes among {ranks_in_words(case.world_size, case.nodes)}, with "
                f"{case.global_batch // case.data_ranks} samples, was not measured; {NEEDED} {' '.join(_asked(case))}"
            )
        per_node = case.world_size // case.nodes
        return min(
            found,
            key=lambda each: (
                abs(math.log(each.per_node / per_node)), abs(math.log(each.case.world_size / case.world_size)),
            ),
        )  # fmt: skip

    # -- a step -----------------------------------------------------------------------------------------------------

    def _step(
        self, case: Case, computed: Computed, work: float = 1.0, travel: float = 1.0, costlier: float = 0.0
    ) -> _Step:
        """The step, corrected by what was measured; `work` and `travel` are how many times as long both take, and calls
        cost so much more (`Costs`)."""
        by = self.correction.get(case.strategy, NONE)
        costs = Costs(*(each + costlier for each in self.costs))
        return self._alone(case, computed, self.contention, costs, work * by.work, travel * by.travel)

    def work(self, case: Case, computed: Computed) -> float:
        """How many times as long a rank of the case computes as one that was alone."""
        return self.correction.get(case.strategy, NONE).work * self._slowest(computed, case)

    def travels(self, call: Call, case: Case) -> float:
        """How long a collective of the case takes while its rank computes, and what the call costs the rank."""
        cost = self.costs.of(case.algorithm) * self.collectives.handling(call, case)
        return self._times(call, case, self.contention, self.correction.get(case.strategy, NONE).travel).beside_s + cost

    def _times(self, call: Call, case: Case, contention: Contention, travel: float) -> Times:
        """What a collective takes; over a link that was given no longer than that says."""
        by = 1.0 if self.collectives.is_given(Place.of(call, case)) else travel
        by *= _together(call) if _has_two_threads(case) else 1.0
        seconds = self.collectives.seconds
        return Times(by * seconds(call, case), by * seconds(call, case, contention.collective))

    def _alone(
        self,
        case: Case,
        computed: Computed,
        contention: Contention = ALONE,
        costs: Costs = FREE,
        work: float = 1.0,
        travel: float = 1.0,
    ) -> _Step:
        programs = self._programs(case, computed)
        late = self._slowest(computed, case)
        several = BROADCASTS if _has_two_threads(case) else 1
        every = dict.fromkeys(call for program in programs for call in program.calls)
        known = {call: self._times(call, case, contention, travel) for call in every}
        cost, here, slower = costs.of(case.algorithm), case.world_size // case.nodes, work * late
        # What a call costs is no work that takes longer.
        called = [self._calling(program, case, cost / slower) for program in programs]
        try:
            found = tasks(called, known.__getitem__, lambda call: several if _sent(call) else 1, here, slower)
            spans = simulate(found.tasks, contention.compute)
        except ValueError as why:
            raise UsageError(
                f"what the ranks of {case.label} were seen to call does not fit together: {why}; measure it again: "
                f"parabench run foresight --out FOLDER {' '.join(_asked(case))}"
            ) from None
        tiers = {at: Place.of(call, case).tier for at, call in found.calls.items()}
        parts = parts_of(found.tasks, spans, tiers, ranks=len(programs))
        return _Step(
            parts.step_s, parts.compute_s / late, parts.compute_s * (1 - 1 / late), parts.exposed_s, parts.bubble_s
        )

    def _calling(self, program: Program, case: Case, cost: float) -> Program:
        """The program with what its calls cost."""
        return program.calling(lambda call: cost * self.collectives.handling(call, case)) if cost else program

    def _slowest(self, computed: Computed, case: Case) -> float:
        """`slowest`, looked up once."""
        key = id(computed), case.world_size
        if key not in self._late:
            segments = () if computed.others else computed.program.among(case.world_size).segments
            self._late[key] = slowest(computed, case.world_size, segments)
        return self._late[key]

    @cached_property
    def _late(self) -> dict[tuple[int, int], float]:
        return {}

    def _programs(self, case: Case, computed: Computed) -> tuple[Program, ...]:
        """What every rank of the case does, or each of them."""
        key = case, id(computed)
        if key not in self._known:
            self._known[key] = self._program(case, computed), *computed.others
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[Case, int], tuple[Program, ...]]:
        return {}

    def _program(self, case: Case, computed: Computed) -> Program:
        program = computed.program.among(case.world_size)
        if not entry_of(case.strategy).takes_caps:
            return program
        if not program.gradients:
            if case.bucket_mib != computed.case.bucket_mib:
                raise UsageError(
                    f"when gradients of {case.label} are ready is not known (with grad_accumulation it is not noted), "
                    f"so only the buckets of {computed.case.label} can be told; leave bucket_mib out"
                )
            return program
        caps = case.bucket_caps or ((case.bucket_cap,) if case.bucket_cap is not None else None)
        return program.with_caps([round(cap * MIB) for cap in caps] if caps else DEFAULT_CAPS)

    # -- what trainings of few ranks tell ----------------------------------------------------------------------------

    @cached_property
    def _plain(self) -> Predictor:
        """The base alone: what trainings are held against."""
        return Predictor(self.base, {})

    @cached_property
    def judges(self) -> list[tuple[Measured, Computed]]:
        """The measured trainings that can be predicted from measurements alone, of a strategy and a number of nodes no
        more than MOST_JUDGES: the last that were measured."""
        found = []
        seen = Counter[tuple[str, bool, int]]()
        for each in reversed(self.base.measured):
            kind = kind_of(each.case)
            if each.case.world_size > 1 and seen[kind] < MOST_JUDGES:
                try:
                    computed = self._plain.computed(each.case)
                    self._plain._alone(each.case, computed, ALONE)
                except UsageError:
                    continue
                found.append((each, computed))
                seen[kind] += 1
        return found[::-1]

    @cached_property
    def _shared(self) -> tuple[Contention, Costs]:
        """What all strategies share, by the judges on one node: between nodes links hide it."""
        judges = [(each, computed) for each, computed in self.judges if each.case.nodes == 1]
        prior = expected_costs(self.base.computed[0].case.device) if self.base.computed else FREE
        if not judges:
            return ALONE, prior
        return likeliest_contention(lambda contention, costs: self._off(judges, contention, costs), prior)

    @cached_property
    def _trained(self) -> dict[Case, int]:
        """The trainings that tell what calls cost, and how many each makes."""
        return {
            each.case: max(len(program.calls) for program in self._programs(each.case, computed))
            for each, computed in self.judges
            if each.case.nodes == 1
        }

    @property
    def contention(self) -> Contention:
        """By how much computing and communicating slow each other down."""
        return self._shared[0]

    @property
    def costs(self) -> Costs:
        """What calls cost."""
        return self._shared[1]

    @cached_property
    def correction(self) -> dict[str, Correction]:
        """By strategy what its judges' steps come out best with."""
        found: dict[str, list[tuple[Measured, Computed]]] = {}
        for each, computed in self.judges:
            found.setdefault(each.case.strategy, []).append((each, computed))

        def corrected(judges: Sequence[tuple[Measured, Computed]]) -> Correction:
            return likeliest(lambda by: self._off(judges, self.contention, self.costs, by))

        return {strategy: corrected(judges) for strategy, judges in found.items()}

    def _off(
        self,
        judges: Sequence[tuple[Measured, Computed]],
        contention: Contention,
        costs: Costs,
        by: Correction = NONE,
    ) -> float:
        """How far off the judges' steps are."""
        alone = self._plain._alone
        return squares([alone(each.case, one, contention, costs, *by).step_s / each.step_s for each, one in judges])

    def _spread(self, case: Case, computed: Computed, step: _Step) -> float:
        """The standard deviation of the prediction's logarithm: that of launches of the base and that of what calls
        cost, each source by itself as far as the step goes with it, and what predictions are off by besides."""
        launches = self.base.launch_spread / math.sqrt(len(computed.step_s))
        programs = self._programs(case, computed)
        calls = [call for program in programs for call in program.calls]
        takes = np.array([self.collectives.seconds(call, case) for call in calls])
        spreads = [self.base.spread(call.bytes, Place.of(call, case).nodes) for call in calls]
        of_tables = float(np.average(spreads, weights=takes)) if takes.any() else 0.0
        told = 0.0
        cost = calls_spread(case, max(len(each.calls) for each in programs), self._trained, self.costs)
        for work, travel, costlier in ((launches, 0.0, 0.0), (0.0, of_tables, 0.0), (0.0, 0.0, cost)):
            if work or travel or costlier:
                more = self._step(case, computed, math.exp(work), math.exp(travel), costlier)
                told += math.log(more.step_s / step.step_s) ** 2
        doublings = math.log2(max(1.0, case.world_size / max(2, self._most_measured(case))))
        model = math.hypot(MODEL_SPREAD, SPREAD_OF_DOUBLING * doublings)
        return math.sqrt(model**2 + told)

    def _most_measured(self, case: Case) -> int:
        return max((m.case.world_size for m, _ in self.judges if m.case.strategy == case.strategy), default=1)

    def _check_memory(self, case: Case, computed: Computed) -> None:
        room = self.base.device_bytes
        if room is not None and case.device != "cpu" and computed.peak_bytes > room:
            raise UsageError(
                f"a rank of {case.label} holds {computed.peak_bytes / 1e9:.1f} GB, and a device has "
                f"{room / 1e9:.1f} GB; give more ranks, a smaller batch, or activation_checkpointing"
            )

    def _notes(self, case: Case, computed: Computed) -> list[str]:
        notes = []
        if computed.per_node != case.world_size // case.nodes:
            here = ranks_in_words(case.world_size // case.nodes, 1)
            notes.append(f"{here} on a node, and what they compute was measured with {computed.per_node}")
        ranks = computed.case.world_size
        if computed.others and computed.cores and ranks * case.threads > computed.cores:
            notes.append(f"its {ranks} ranks were measured together on {computed.cores} cores, which slows them down")
        if (
            not computed.others
            and computed.program.gradients == ()
            and max(ranks, case.world_size) > 2 * min(ranks, case.world_size)
        ):
            notes.append(f"what a rank computes and holds was measured as one of {ranks}")
        if case.strategy not in self.correction:
            notes.append(f"no training of {case.strategy} was measured that this could be held against")
        own = {each.algorithm for each in self._trained if not is_backends(each.algorithm)}
        if not (is_backends(case.algorithm) or case.algorithm in own):
            by = " and ".join(sorted(own))
            notes.append(
                f"what calls by {case.algorithm} cost was measured by {by}"
                if own
                else f"no training by {case.algorithm} or another of parabench's own algorithms was measured, whose "
                "calls cost the rank time that it would compute in"
            )
        return notes


def _asked(case: Case) -> Iterator[str]:
    """The options of `parabench run foresight` that measure what a rank of the case computes."""
    plain = {"algorithm", "bucket_mib", "nodes", "ranks_per_node", "device", "backend", "data", "no_sync"}
    for name, value in case.to_dict().items():
        # Models without sequences have samples of length 1, whatever is asked.
        follows = value == DEFAULTS[name] or value is None or (name == "seq_len" and value == 1)
        if name == "global_batch" and case.data_ranks == case.world_size:
            # Trainings of fewer ranks, by which predictions are corrected, have as many samples a rank.
            yield f"--set {BATCH_PER_RANK}={value // case.data_ranks}"
        elif name in ("strategy", "world_size", "global_batch") or not (name in plain or follows):
            yield f"--set {name}={str(value).lower() if isinstance(value, bool) else value}"


@dataclass(frozen=True, slots=True)
class _Step:
    step_s: float
    compute_s: float
    slowest_s: float
    exposed_s: dict[str, float]
    bubble_s: float


def _has_two_threads(case: Case) -> bool:
    """Whether a group has several collectives at once: gloo's own."""
    return case.backend == "gloo" and is_backends(case.algorithm)


def _sent(call: Call) -> bool:
    return call.op == "broadcast"


def _together(call: Call) -> float:
    """How many times as long each of two broadcasts takes that go on at the same time, from neighbours in binomial
    trees: the second root sends log2(n) messages of its own and passes on log2(n) - 1 of the first one's."""
    depth = math.ceil(math.log2(max(2, call.group.size)))
    return (2 * depth - 1) / depth if _sent(call) else 1.0


def by_reason(refused: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    """Those that were refused, by why; of reasons that differ in numbers alone the first stands for all."""
    first: dict[str, str] = {}
    found: dict[str, list[Prediction]] = {}
    for each in refused:
        if each.refused:
            reason = first.setdefault(_NUMBER.sub("", each.refused), each.refused)
            found.setdefault(reason, []).append(each)
    return found


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those that were predicted, the fastest first; then those that were refused."""
    return sorted(predictions, key=lambda each: (each.refused is not None, each.step_s))
