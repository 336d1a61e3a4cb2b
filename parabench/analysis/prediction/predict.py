"""What a step would take that nobody measured, how sure that is, and what would have to be measured to tell.

A step is the program of a rank (`program`), its collectives as long as tables or schedules say (`network`), in a
simulation where computing and communicating slow each other down (`simulation`). Two things are taken from trainings of
few ranks that were measured: by how much both slow each other down, and how much longer a rank computes than alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from parabench.analysis.prediction import naive
from parabench.analysis.prediction.base import NEEDED, Base, Computed, Measured, slowest, work_of
from parabench.analysis.prediction.collective_times import Collective, command
from parabench.analysis.prediction.network import Extrapolated, Link, measured_link
from parabench.analysis.prediction.program import DEFAULT_CAPS, Call, Program, tasks
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN
from parabench.analysis.prediction.simulation import ALONE, Contention, simulate
from parabench.collectives import is_backends, levels_of
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.collective_case import size_text
from parabench.store.record import MIB
from parabench.strategies import entry_of

# Half the width of a normal distribution's 90 % interval, in standard deviations.
Z90 = 1.645

# What a prediction is off by besides what launches tell, as a standard deviation of its logarithm: of held-out cases on
# emulated machines (docs/explanation/foresight.md), at the ranks that were measured and for each doubling of them.
MODEL_SPREAD, SPREAD_OF_DOUBLING = 0.04, 0.01

# How many times as long a rank may compute beside others as alone; a machine's speed too changes between sessions.
CORRECTIONS = 0.5, 2.0

# By how many times computing and communicating are looked whether they slow each other down.
_COMPUTE, _COLLECTIVE = np.linspace(1.0, 2.0, 11), np.linspace(1.0, 4.0, 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a case would take: `step_s` with its 90 % interval, and what of it is `compute_s`, `slowest_s` waiting for
    the slowest rank, `exposed_s` communication by tier that nothing hides. `peak_bytes` is what a rank holds.

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
    peak_bytes: float | None = None
    constant_s: float | None = None
    line_s: float | None = None
    measured_s: float | None = None
    refused: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Predictor:
    """Predictions from a base. `links` are tiers that were given instead of measured."""

    base: Base
    links: Mapping[str, Link]

    def predict(self, case: Case) -> Prediction:
        """The prediction of a case on `case.nodes` nodes; refused where something is not known."""
        try:
            computed = self.computed(case)
            self._check_memory(case, computed)
            step = self._step(case, computed)
            peak = computed.peak_bytes
        except UsageError as error:
            return Prediction(case=case, refused=str(error))
        spread = self._spread(case, computed)
        known = {work_of(each.case): each for each in self.base.measured if each.case == case}
        forecasts = naive.forecasts(case, self.base.measured)
        return Prediction(
            case=case,
            step_s=step.step_s,
            low_s=step.step_s * math.exp(-Z90 * spread),
            high_s=step.step_s * math.exp(Z90 * spread),
            compute_s=step.compute_s,
            slowest_s=step.slowest_s,
            exposed_s=step.exposed_s,
            peak_bytes=peak if math.isfinite(peak) else None,
            constant_s=forecasts.constant_s,
            line_s=forecasts.line_s,
            measured_s=next((each.step_s for each in known.values()), None),
            notes=tuple(self._notes(case, computed)),
        )

    def computed(self, case: Case) -> Computed:
        """What a rank of the case computes: of those that were measured the one whose node is most like the case's,
        then of the nearest number of ranks. Raises UsageError where there is none."""
        found = self.base.of(case)
        if not found:
            here = f"--set world_size={case.world_size} --set global_batch={case.global_batch}"
            raise UsageError(
                f"what a rank of {case.label} computes was not measured, with {case.global_batch // case.data_ranks} "
                f"samples of {case.model}; {NEEDED} --set strategy={case.strategy} {here}"
            )
        per_node = case.world_size // case.nodes
        return min(
            found,
            key=lambda each: (
                abs(math.log(each.per_node / per_node)), abs(math.log(each.case.world_size / case.world_size)),
            ),
        )  # fmt: skip

    def seconds(self, call: Call, case: Case) -> float:
        """How long a collective of the case takes where nothing disturbs it. Raises UsageError where that is not
        known."""
        place = Place.of(call, case)
        if place.ranks == 1:
            return 0.0
        algorithm = _algorithm(case.algorithm, call.op)
        exact = self.base.collectives.get(Collective(call.op, algorithm, place.ranks, place.nodes))
        size = np.array([float(call.bytes)])
        if exact is not None and place.beside == 1 and not (place.nodes > 1 and BETWEEN in self.links):
            exact.require(call.bytes)
            return float(exact(size)[0])
        return float(self._extrapolated(call.op, algorithm, place, call.bytes)(size)[0])

    def _seconds(self, call: Call, case: Case) -> float:
        """The same, looked up once."""
        key = call, case.algorithm, case.world_size, case.nodes
        if key not in self._known_seconds:
            self._known_seconds[key] = self.seconds(call, case)
        return self._known_seconds[key]

    @cached_property
    def _known_seconds(self) -> dict[tuple[Call, str, int, int], float]:
        return {}

    def _extrapolated(self, op: str, algorithm: str, place: Place, size: int) -> Extrapolated:
        tiers = [tier for tier, there in ((WITHIN, place.per_node > 1), (BETWEEN, place.nodes > 1)) if there]
        links, piece_bytes = {}, 1 << 60
        for tier in tiers:
            links[tier], pieces = self._link(op, algorithm, tier)
            piece_bytes = min(piece_bytes, pieces)
        if place.beside > 1 and BETWEEN in links:
            links[BETWEEN] = _shared(links[BETWEEN], place.beside)
        found = Extrapolated(op, algorithm, place.ranks, place.per_node, links, piece_bytes)
        try:
            beyond = found.beyond(size)
        except ValueError as error:
            raise UsageError(
                f"how {op} {algorithm} goes round {place.ranks} ranks is not known, only what was measured: {error}; "
                f"measure it: {command(Collective(op, algorithm, place.ranks, place.nodes))}"
            ) from None
        for tier, (_, most) in beyond.items():
            if most > links[tier].most:
                asked = size_text(round(most))
                raise UsageError(
                    f"{op} {algorithm} of {size_text(size)} among {place.ranks} ranks has messages of {asked} {tier}, "
                    f"more than 8 times what was measured ({size_text(round(links[tier].most / 8))}); measure larger "
                    f"ones: {command(Collective(op, algorithm, 2, 1 if tier == WITHIN else 2))} --max "
                    f"{size_text(2 * round(most)).replace(' ', '')}"
                )
        return found

    def _link(self, op: str, algorithm: str, tier: str) -> tuple[Link, int]:
        """What a message takes over a tier, and what messages are cut to. A tier that was given is never quicker than
        one within a node, where that was measured: what sends is the same."""
        levels = levels_of(algorithm)
        of = algorithm if levels is None else levels[tier == BETWEEN]
        key = Collective(op, of, 2, 1 if tier == WITHIN else 2)
        times = self.base.collectives.get(key)
        measured = None if times is None else measured_link(times, tier, times.piece_bytes)
        pieces = times.piece_bytes if times is not None else 1 << 60
        given = self.links.get(tier)
        if given is None:
            if measured is None:
                flag = f"or give it: --link {'local' if tier == WITHIN else 'node'}=25GB/s,20us"
                raise UsageError(f"links {tier} were not measured for {op} {of}; {command(key)}, {flag}")
            return measured, pieces
        inside = self.base.collectives.get(Collective(op, of, 2, 1))
        sends = None if inside is None else measured_link(inside, WITHIN, inside.piece_bytes)
        if inside is None or sends is None:
            return given, pieces
        return _slower(given, sends), inside.piece_bytes

    # -- a step -----------------------------------------------------------------------------------------------------

    def _step(self, case: Case, computed: Computed, work: float = 1.0, travel: float = 1.0) -> _Step:
        """The step, corrected by what was measured; `work` and `travel` are how many times as long both take."""
        corrected = work * self.correction.get(case.strategy, 1.0)
        return self._alone(case, computed, self.contention, corrected, travel)

    def work(self, case: Case, computed: Computed) -> float:
        """How many times as long a rank of the case computes as one that was alone."""
        return self.correction.get(case.strategy, 1.0) * slowest(computed, case.world_size)

    def _alone(
        self, case: Case, computed: Computed, contention: Contention, work: float = 1.0, travel: float = 1.0
    ) -> _Step:
        program = self._program(case, computed)
        late = slowest(computed, case.world_size)
        seconds = {call: travel * self._seconds(call, case) for call in dict.fromkeys(program.calls)}
        found = tasks(program.scaled(work * late), seconds.__getitem__)
        spans = simulate(found, contention)
        exposed: dict[str, float] = {}
        compute, before = 0.0, 0.0
        for task, span in zip(found, spans, strict=True):
            if task.lanes[0].what == "compute":
                compute += span.end - span.begin
                if span.begin > before:
                    last = max(task.after, key=lambda at: spans[at].end)
                    tier = found[last].lanes[0].what
                    exposed[tier] = exposed.get(tier, 0.0) + span.begin - before
                before = span.end
        tiers: dict[str, float] = {}
        for call in dict.fromkeys(program.calls):
            tier = BETWEEN if Place.of(call, case).nodes > 1 else WITHIN
            name = f"{call.group.size} ranks, {call.group.stride} apart"
            tiers[tier] = tiers.get(tier, 0.0) + exposed.pop(name, 0.0)
        return _Step(spans[-1].end, compute / late, compute * (1 - 1 / late), tiers)

    def _program(self, case: Case, computed: Computed) -> Program:
        program = computed.program.among(case.world_size)
        if not program.gradients or not entry_of(case.strategy).takes_caps:
            return program
        caps = case.bucket_caps or ((case.bucket_cap,) if case.bucket_cap is not None else None)
        return program.with_caps([round(cap * MIB) for cap in caps] if caps else DEFAULT_CAPS)

    # -- what trainings of few ranks tell ----------------------------------------------------------------------------

    @cached_property
    def judges(self) -> list[tuple[Measured, Computed]]:
        """The measured trainings that can be predicted from measurements alone."""
        plain = Predictor(self.base, {})
        found = []
        for each in self.base.measured:
            if each.case.world_size > 1 and self.base.of(each.case):
                try:
                    computed = plain.computed(each.case)
                    plain._alone(each.case, computed, ALONE)
                except UsageError:
                    continue
                found.append((each, computed))
        return found

    @cached_property
    def contention(self) -> Contention:
        """By how much computing and communicating slow each other down, so that the judges' steps come out best."""
        if not self.judges:
            return ALONE
        plain = Predictor(self.base, {})

        def error(contention: Contention) -> float:
            logs = [
                math.log(plain._alone(each.case, computed, contention).step_s / each.step_s)
                for each, computed in self.judges
            ]
            return float(np.mean(np.square(logs)))

        grid = [Contention(float(c), float(k)) for c in _COMPUTE for k in _COLLECTIVE]
        return min(grid, key=error)

    @cached_property
    def correction(self) -> dict[str, float]:
        """By strategy, how many times as long a rank computes as it does alone, so that the judges' steps come out
        right: in the middle of the judges of a strategy."""
        plain = Predictor(self.base, {})
        found: dict[str, list[float]] = {}
        for each, computed in self.judges:

            def off(by: float, each: Measured = each, computed: Computed = computed) -> float:
                return plain._alone(each.case, computed, self.contention, by).step_s - each.step_s

            least, most = CORRECTIONS
            by = least if off(least) > 0 else most if off(most) < 0 else brentq(off, least, most, xtol=1e-3)
            found.setdefault(each.case.strategy, []).append(by)
        return {strategy: float(np.median(each)) for strategy, each in found.items()}

    def _spread(self, case: Case, computed: Computed) -> float:
        """The standard deviation of the prediction's logarithm: that of launches of the base, each source by itself as
        far as the step goes with it, and what predictions are off by besides."""
        launches = _known(self.base.launch_spread) / math.sqrt(len(computed.step_s))
        tables = [each for each in self.base.collectives.values() if math.isfinite(each.spread)]
        of_tables = float(np.mean([each.spread / math.sqrt(each.launches) for each in tables])) if tables else 0.0
        told = 0.0
        for work, travel in ((launches, 0.0), (0.0, of_tables)):
            high, low = (self._step(case, computed, math.exp(by * work), math.exp(by * travel)) for by in (1, -1))
            told += (math.log(high.step_s / low.step_s) / 2) ** 2
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
            here, there = case.world_size // case.nodes, computed.per_node
            notes.append(f"{here} ranks on a node, and what they compute was measured with {there}")
        if case.strategy not in self.correction:
            notes.append(f"no training of {case.strategy} was measured that this could be held against")
        return notes


@dataclass(frozen=True, slots=True)
class _Step:
    step_s: float
    compute_s: float
    slowest_s: float
    exposed_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group's ranks are: on `nodes` nodes, `per_node` on each. The ranks of a node send for as many groups as
    `beside` at the same time."""

    nodes: int
    per_node: int
    beside: int = 1

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.nodes * self.per_node

    @classmethod
    def of(cls, call: Call, case: Case) -> Place:
        """Where the ranks of a call are, in a case whose ranks are numbered node by node."""
        size, stride = call.group
        here = case.world_size // case.nodes
        inside = max(1, min(size, here // stride))
        if size % inside:
            inside = math.gcd(size, inside)
        return cls(size // inside, inside, min(stride, here) if size > inside else 1)


def _algorithm(algorithm: str, op: str) -> str:
    """What really runs: the backend does what is none of ours."""
    return "native" if is_backends(algorithm) else algorithm


def _shared(link: Link, by: int) -> Link:
    """A link that so many groups send over at the same time."""
    seconds = link.seconds
    return Link(lambda sizes: seconds(by * np.asarray(sizes, dtype=float)), link.least / by, link.most / by)


def _slower(given: Link, sends: Link) -> Link:
    """A link that was given, between ranks that need as long to send as was measured."""
    one, other = given.seconds, sends.seconds
    return Link(lambda sizes: np.maximum(one(sizes), other(np.minimum(sizes, sends.most))))


def _known(number: float) -> float:
    return number if math.isfinite(number) else 0.0


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those that were predicted, the fastest first; then those that were refused."""
    return sorted(predictions, key=lambda each: (each.refused is not None, each.step_s))
