"""The ranking: which configurations may be the fastest, and how much slower the others are.

Configurations with the same workload are ranked. `stats.contrasts.fit` compares their launches, and `_ranking` turns
its result into a `Ranking`. `words` makes the `Answer` from it; the report and the exporters read it, too.
docs/site/keys.toml describes every field.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.links import with_links
from parabench.analysis.numbers import case_of, case_table, levels, only_ranked, same_work
from parabench.analysis.ranking.bucket_curves import Curve, Members, bucket_curves, members
from parabench.analysis.ranking.objectives import STEP, Objective, basis
from parabench.analysis.ranking.pareto import ParetoPoint, front
from parabench.analysis.ranking.race import Look, race, seconds_at
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import SHARP_ENOUGH, TOO_WIDE, Effects, fit, turn_weights
from parabench.errors import UsageError, did_you_mean
from parabench.plan.case import DEFAULTS, LABELED, MEANS, Case, fields_of
from parabench.store.record import FIRST_BLOCK
from parabench.store.results import records
from parabench.strategies import OPTIONAL, Rule, entry_of
from parabench.strategies.snippet import snippet

# Rows of a case table by id.
Cases = Mapping[str, Mapping[str, Any]]

# Marks in the table of cases: a strategy without communication, a configuration without a ratio, a tied one.
NOT_RANKED = "baseline, not ranked"
NOT_COMPARED = "not compared"
TIED = "tied"
# Objectives that only use launches with comparable step times, and that links can explain.
TIMED = ("step_time_s", "tokens_per_s")
# A baseline without communication must agree with the best in these fields.
SAME = ("world_size", "threads", "grad_accumulation", *fields_of(MEANS))
# The columns of a case table that an answer needs.
_SHOWN = (*DEFAULTS, "label", "statistic", "status", "step_time_s", "tokens_per_s", "staleness_mean", "staleness_max")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A configuration with its number and its place in the ranking."""

    place: Literal["best", "tied", "slower", "not_compared"]
    case_id: str
    label: str
    strategy: str
    value: float
    plus_minus: float | None
    step_time_s: float
    plus_minus_s: float | None
    tokens_per_s: float | None
    unit: str
    launches: int
    launch_ids: tuple[int, ...]
    status: str
    slower: float | None
    slower_low: float | None
    slower_high: float | None
    code: str | None
    other_training: bool
    staleness_mean: float | None
    staleness_max: float | None
    reason: str | None


@dataclass(frozen=True)
class NoCommBaseline:
    """A configuration whose ranks exchange nothing, compared with the fastest."""

    case_id: str
    label: str
    strategy: str
    step_time_s: float
    share: float | None
    low: float | None
    high: float | None
    bound: bool


@dataclass(frozen=True)
class Place:
    """The best configuration for one value of each of these axes of `--by`; `names` are the values."""

    axes: tuple[str, ...]
    names: tuple[str, ...]
    case_id: str | None
    distinguishable: bool | None
    configurations: int
    status: str


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The ranking of the configurations with the same `work`, by one `objective` (a key of `OBJECTIVES`).

    `tied` configurations may be the best, too, and `slower` ones are not. Configurations that no launch or repetition
    connects with the best have no ratio and are `not_compared`.
    """

    heading: str = ""
    objective: str
    work: dict[str, Any]
    statistic: str = format.UNKNOWN
    basis: str = format.UNKNOWN
    blocks: int = 0
    launches: int = 0
    best: Candidate | None = None
    tied: tuple[Candidate, ...] = ()
    slower: tuple[Candidate, ...] = ()
    not_compared: tuple[Candidate, ...] = ()
    default: Candidate | None = None
    half_width: float | None = None
    more_blocks: int | None = None
    decided: bool = False
    why_not: str | None = None
    members: tuple[Members, ...] = ()
    curves: tuple[Curve, ...] = ()
    front: tuple[ParetoPoint, ...] = ()
    by: tuple[Place, ...] = ()
    unverified: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    no_comm_baseline: NoCommBaseline | None = None
    same_training: Candidate | None = None
    links: str = ""
    race: tuple[Look, ...] = ()
    apart: tuple[str, ...] = ()
    apart_half_width: float | None = None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The configurations that are compared, the best first."""
        return (*([self.best] if self.best else []), *self.tied, *self.slower)

    @property
    def too_wide(self) -> bool:
        """Whether several may be the best, and the difference between them may be TOO_WIDE or more."""
        return bool(self.tied) and (self.half_width is None or self.half_width >= TOO_WIDE)

    @property
    def winner(self) -> Candidate | None:
        """The best if it can be named: all configurations are compared, and the set of the best is a single one, or
        narrow and not of all."""
        named = self.decided and not self.too_wide and (not self.tied or bool(self.slower)) and not self.not_compared
        return self.best if named else None

    @property
    def open(self) -> bool:
        """Whether more repetitions could settle something."""
        return bool(self.not_compared or (self.tied and (self.more_blocks is not None or not self.decided)))


def spots(seen: SessionData, objective: Objective = STEP, by: tuple[str, ...] = ()) -> tuple[Ranking, ...]:
    """Return the rankings of a session, one per workload and at least one.

    `by` are axes: the rankings have the best for each of their values. Raises UsageError for an unknown axis.
    """
    for name in by:
        if name not in DEFAULTS:
            hint = did_you_mean(name, DEFAULTS, most=3, cutoff=0.5)
            raise UsageError(f"--by {name!r} is not an axis; {hint}use one of {', '.join(DEFAULTS)}")
    found = answers(seen.numbers, objective, tuple(dict.fromkeys(by)), seen.cases, seen.session.raced)
    return with_links(found, seen) if objective.name in TIMED else found


def answers(
    launches: pd.DataFrame,
    objective: Objective = STEP,
    by: tuple[str, ...] = (),
    cases: pd.DataFrame | None = None,
    raced: bool = False,
) -> tuple[Ranking, ...]:
    """Return the rankings of the launches of a table like `numbers.numbers`; `cases` is its case table, if known."""
    own = launches[launches["repetition"] >= FIRST_BLOCK]
    if not len(own):
        why = "No launch was recorded, so the fastest configuration is unknown."
        return (Ranking(objective=objective.name, work={}, why_not=why),)
    groups = same_work(own, objective.work)
    rows = records(case_table(launches) if cases is None else cases, ("case_id", *_SHOWN))
    table = {row["case_id"]: row for row in rows}
    seconds = seconds_at(own) if raced and objective is STEP else None
    return tuple(
        _ranking(work, heading, group, table, objective, by, seconds)
        for (work, group), heading in zip(groups, _headings(groups), strict=True)
    )


def _headings(groups: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> list[str]:
    """Return the difference of each work from the others: 'gpt-nano, global batch 16'; in weak scaling 'global batch 16
    (2 ranks, 8 each)'."""
    speaking = ("model", "data", "precision", "device")  # their values need no name before them
    varying = [name for name in groups[0][0] if len({str(work[name]) for work, _ in groups}) > 1]
    sizes = [set(group["world_size"]) for _, group in groups]
    found = []
    for (work, _), own in zip(groups, sizes, strict=True):
        text = ", ".join(
            str(work[name]) if name in speaking else f"{name.replace('_', ' ')} {work[name] or 'of bytes'}"
            for name in varying
        )
        if text and "global_batch" in work and len(own) == 1 and len(set().union(*sizes)) > 1:
            n = max(own)
            text += f" ({format.count(n, 'rank')}, {work['global_batch'] / n:g} each)"
        found.append(text)
    return found


def _ranking(
    work: dict[str, Any],
    heading: str,
    launches: pd.DataFrame,
    table: Cases,
    objective: Objective,
    by: tuple[str, ...],
    seconds: Mapping[int, float] | None,
) -> Ranking:
    """Return the ranking of one workload.

    Configurations are compared if common launches or repetitions connect them. Those outside the largest connected
    group are listed without a ratio.

    Args:
        launches: The launches of the workload.
        table: The rows of the case table by id.
        seconds: In a race, the end times of the repetitions.
    """
    counted = launches[launches["timed" if objective.name in TIMED else "counted"]]
    ranked = only_ranked(counted)
    good = ranked[ranked[objective.column] > 0]
    finished = only_ranked(launches[launches["counted"]])
    found = Ranking(
        heading=heading,
        objective=objective.name,
        work=work,
        statistic=launches["statistic"].iloc[0],
        basis=basis(objective, good if len(good) else launches),
        unverified=tuple(dict.fromkeys(finished[~finished["verified"]]["label"])),
    )
    if not len(good):
        return replace(found, why_not=_no_number(launches, counted, ranked, objective))
    effects = fit(good, objective.column)
    measured, order = effects.cases, effects.connected()
    configured = dict(zip(launches["case"], map(case_of, launches["case_json"]), strict=True))
    cases = {case: row for case, row in table.items() if case in configured}
    numbers = _numbers(objective, good, launches, cases, effects)
    if len(order) == 1 < len(measured):
        return replace(
            found,
            launches=len(good),
            blocks=effects.n_blocks,
            not_compared=_candidates(numbers),
            why_not="No launch or repetition that counts is common to two configurations, so they cannot be compared.",
        )
    if len(order) < len(measured):
        good = good[good["case"].isin(order)]
        effects = fit(good, objective.column)
    why_not = _why_not(effects)
    near = order if why_not else effects.indistinguishable(order[0])
    compared = _compared(numbers.loc[list(order)], effects, order[0], near, decided=why_not is None)
    compared.loc[order[0], "code"] = snippet(configured[order[0]])
    rows = {row.case_id: row for row in _candidates(compared)}
    best, same = rows[order[0]], (row for row in rows.values() if not row.other_training)
    labels = {case: row["label"] for case, row in cases.items()}
    found = replace(
        found,
        launches=len(good),
        blocks=effects.n_blocks,
        best=best,
        tied=tuple(row for row in rows.values() if row.place == "tied"),
        slower=tuple(row for row in rows.values() if row.place == "slower"),
        not_compared=_candidates(numbers.drop(index=list(order))),
        default=_default(best.case_id, cases, rows),
        decided=why_not is None,
        why_not=why_not,
        curves=bucket_curves(configured, labels, effects, decided=why_not is None),
        by=_places(by, configured, cases, measured, order, None if why_not else near) if by else (),
        unknown=tuple(labels[case] for case in dict.fromkeys(ranked["case"]) if case not in measured),
        differing=tuple(name for name in DEFAULTS if len({_value(cases[case][name]) for case in order} - {None}) > 1),
        no_comm_baseline=_no_comm_baseline(counted, cases, best.case_id) if objective is STEP else None,
        same_training=next(same, None) if best.other_training else None,
        race=race(good, seconds) if seconds is not None else (),
    )
    if why_not:
        return found
    return replace(
        found,
        **_resolution(effects, good, order, near, labels),
        members=members(near, configured, labels),
        front=front(good, cases) if good["global_batch"].nunique() == 1 else (),
    )


def _compared(
    numbers: pd.DataFrame, effects: Effects, best: str, near: Collection[str], *, decided: bool
) -> pd.DataFrame:
    """Return the table of `_numbers` with the places and the ratios to the best; `near` may be the best, too."""
    behind, widths = effects.behind(best), effects.best_half_widths(best)
    known = np.isfinite(widths) & (widths.index != best) & decided
    return numbers.assign(
        place=["best" if case == best else "tied" if case in near else "slower" for case in numbers.index],
        slower=np.expm1(behind),
        slower_low=np.expm1((behind - widths).where(known)),
        slower_high=np.expm1((behind + widths).where(known)),
        reason=None,
    )


def _resolution(
    effects: Effects, launches: pd.DataFrame, order: Sequence[str], near: Sequence[str], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of `Ranking` about the precision of the comparison with the best, and of more repetitions.

    Launches differ. If the best shared launches, comparisons with configurations that shared none (`apart`) are
    imprecise, so they do not count for `half_width`.
    """
    first, widths = order[0], effects.best_half_widths(order[0])
    shared = set(launches[launches["in_turns"]]["case"])
    apart = [case for case in near if first in shared and case not in shared]
    among = near if len(near) > 1 else order
    half_width = _widest(widths, among)
    unclear = len(near) > 1 and (half_width is None or half_width > SHARP_ENOUGH)
    if apart:  # if no other is tied, use the half-width of the next one
        others = [case for case in order[1:] if case in shared]
        half_width = _widest(widths, [case for case in others if case in near] or others[:1])
    return {
        "half_width": half_width,
        "more_blocks": _more_blocks(effects, first, among, launches) if unclear else None,
        "apart": tuple(labels[case] for case in apart),
        "apart_half_width": _widest(widths, apart) if apart else None,
    }


def _no_number(own: pd.DataFrame, every: pd.DataFrame, ranked: pd.DataFrame, objective: Objective) -> str:
    if len(ranked):
        return f"No successful launch has a value for {objective.name}, so the best configuration is unknown."
    if len(every):
        labels = format.listed(dict.fromkeys(every["label"]), most=3)
        return f"Only {labels} succeeded, which is a no-communication baseline and not ranked."
    how = ", ".join(f"{n} {status}" for status, n in Counter(own["status"]).items())
    return f"No launch has a known step time, so the fastest configuration is unknown ({how})."


def _why_not(effects: Effects) -> str | None:
    if len(effects.cases) == 1:
        return "Only one configuration has a result, so nothing can be ranked."
    if effects.n_blocks < 2:
        return "One block cannot be tested against noise: run at least 2 blocks, better 3 or more."
    if effects.df < 1:
        return "Too few launches succeeded to test differences against noise: run more blocks."
    return None


def _numbers(
    objective: Objective, good: pd.DataFrame, own: pd.DataFrame, cases: Cases, effects: Effects
) -> pd.DataFrame:
    """Return the columns of `Candidate` by case, by rising level, as if none was compared; NaN is unknown."""
    times = effects if objective is STEP else fit(only_ranked(own[own["timed"]]))
    costs, ids = pd.Series(levels(good, objective.column)).sort_values(kind="stable"), good.groupby("case")["launch_id"]
    table = pd.DataFrame([cases[case] for case in costs.index], costs.index)
    value = 1 / costs if objective.inverse else costs
    return table.assign(
        place="not_compared",
        case_id=costs.index,
        value=value,
        plus_minus=np.expm1(effects.own_half_widths()) * value,
        plus_minus_s=np.expm1(times.own_half_widths()) * table["step_time_s"],
        unit=table["seq_len"].map(format.unit_of),
        launches=ids.size(),
        launch_ids=ids.agg(tuple),
        **dict.fromkeys(("slower", "slower_low", "slower_high"), np.nan),
        code=None,
        other_training=[entry_of(name).rule is Rule.APPLIED_ONCE for name in table["strategy"]],
        reason="no launch or repetition that counts connects it with the configurations that are compared",
    )[[each.name for each in fields(Candidate)]]


def _candidates(table: pd.DataFrame) -> tuple[Candidate, ...]:
    """Return the rows as records, with `None` for unknown numbers."""
    rows = ({name: format.cell(value) for name, value in row.items()} for row in records(table))
    return tuple(Candidate(**row) for row in rows)


def _widest(widths: pd.Series[float], cases: Sequence[str]) -> float | None:
    """Return the widest known half-width of these cases as a fraction; `None` if one is unknown, or there is none."""
    return format.number_or_none(math.expm1(widths[list(cases)].max()))


def _more_blocks(effects: Effects, first: str, among: Sequence[str], good: pd.DataFrame) -> int:
    """Return how many more blocks like the last would make the comparison of `first` with `among` sharp enough."""
    had, next_has = float(effects.n_blocks), 1.0
    if (weights := turn_weights(good)) is not None:
        # In a race launches of fewer cases have more turns of each.
        of_first = weights[np.asarray(good["case"]) == first]
        had, next_has = of_first.sum(), of_first[-1]
    # At least one: after a missing launch the interval can be wide although the planned blocks would have sufficed.
    return max(1, math.ceil((effects.blocks_for(math.log1p(SHARP_ENOUGH), among) - had) / next_has))


def _default(first: str, cases: Cases, compared: Mapping[str, Candidate]) -> Candidate | None:
    """Return PyTorch's default at the world size and batch of `first`; `None` if it has no number."""
    usual = {name: DEFAULTS[name] for name in ("strategy", "algorithm", "bucket_mib", *LABELED)}
    usual |= {name: cases[first][name] for name in ("world_size", "global_batch")}
    same = (case for case, row in cases.items() if all(_value(row[name]) == usual[name] for name in usual))
    return next((compared[case] for case in same if case in compared), None)


def _value(cell: Any) -> Any:
    """Return `None` for NaN, which a column of numbers has if nothing is set."""
    return None if cell != cell else cell


def _places(
    axes: Sequence[str],
    configured: Mapping[str, Case],
    cases: Cases,
    measured: Collection[str],
    order: Sequence[str],
    near: Collection[str] | None,
) -> tuple[Place, ...]:
    """Return a place for each value of `axes`, the best first, values without a number last.

    `near` are the cases that may be the best of all; `None` if nothing is decided.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for case, configuration in configured.items():
        if entry_of(configuration.strategy).ranked:
            groups.setdefault(tuple(_name(configuration, axis) for axis in axes), []).append(case)
    found = []
    for names, ids in groups.items():
        ranked = [case for case in order if case in ids]
        own = ranked[0] if ranked else None
        unlike = None if near is None or own in (None, order[0]) else own not in near
        lost = [case for case in ids if case in measured and case not in order]
        status = ", ".join(dict.fromkeys(NOT_COMPARED if case in lost else cases[case]["status"] for case in ids))
        found.append(Place(tuple(axes), names, own, unlike, len(ranked), status))
    return tuple(sorted(found, key=lambda each: order.index(each.case_id) if each.case_id else len(order)))


def _name(case: Case, axis: str) -> str:
    value = case.cells()[axis]
    if axis in OPTIONAL and axis not in entry_of(case.strategy).axes and getattr(case, axis) == DEFAULTS[axis]:
        return "–"  # the strategy has no such axis
    if type(value) is bool:
        return "on" if value else "off"
    if value is None:
        return "default" if axis == "bucket_mib" else "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def _no_comm_baseline(launches: pd.DataFrame, cases: Cases, best: str) -> NoCommBaseline | None:
    """Compare the case `best` with the fastest that exchanges nothing, at the same world size and options.

    Return `None` if there is none. `launches` are those that count.
    """
    own = cases[best]
    found = [
        (row["step_time_s"], case)
        for case, row in cases.items()
        if entry_of(row["strategy"]).rule is Rule.FIRST_LOSS
        and row["world_size"] > 1
        and all(row[name] == own[name] for name in SAME)
        and format.known(row["step_time_s"])
    ]
    if not found:
        return None
    step_time_s, case = min(found)
    effects = fit(launches[launches["case"].isin((case, best))])
    log, width = effects.behind(best)[case], effects.half_widths(case)[best]
    known = math.isfinite(width)
    entry, other = entry_of(own["strategy"]), entry_of(cases[case]["strategy"])
    return NoCommBaseline(
        case_id=case,
        label=cases[case]["label"],
        strategy=cases[case]["strategy"],
        step_time_s=step_time_s,
        share=format.number_or_none(-math.expm1(log)),
        low=-math.expm1(log + width) if known else None,
        high=-math.expm1(log - width) if known else None,
        bound=entry.local_forward and entry.splits == other.splits,
    )


def slower_unranked(seen: SessionData, answers: Iterable[Ranking]) -> dict[str, float]:
    """Return for each case that is not ranked how much slower it is than the best of its workload, as a fraction.

    It is the ratio in common launches and repetitions, NaN if none connects the two.
    """
    best = {tuple(answer.work.values()): answer.best for answer in answers}
    found: dict[str, float] = {}
    for work, own in same_work(seen.numbers[seen.numbers["timed"]]):
        first = best.get(tuple(work.values()))
        ranked = set(only_ranked(own)["case"])
        if first is not None and not ranked.issuperset(own["case"]):
            behind = fit(own).behind(first.case_id)
            found |= {str(case): math.expm1(log) for case, log in behind.items() if case not in ranked}
    return found


def marks(cases: pd.DataFrame, answers: Iterable[Ranking]) -> pd.DataFrame:
    """Return columns next to a case table.

    `ranking` is 'fastest', 'tied' or empty. `mark` labels configurations that are not ranked, not compared, or train in
    another way.
    """
    ranking: dict[str, str] = {}
    mark: dict[str, str] = {}
    for answer in answers:
        mark |= {each.case_id: NOT_COMPARED for each in answer.not_compared}
        if answer.best is not None and answer.decided:
            ranking[answer.best.case_id] = TIED if answer.winner is None else "fastest"
            ranking |= {each.case_id: TIED for each in answer.tied}
    rows = records(cases)
    found = [(ranking.get(row["case_id"], ""), mark.get(row["case_id"]) or _mark(row)) for row in rows]
    return pd.DataFrame(found, cases.index, ["ranking", "mark"])


def _mark(row: Mapping[Any, Any]) -> str:
    entry = entry_of(str(row["strategy"]))
    if not entry.ranked:
        return NOT_RANKED
    if entry.rule is not Rule.APPLIED_ONCE:
        return ""
    mean, most = row["staleness_mean"], row["staleness_max"]
    known = format.known(mean) and format.known(most)
    return "another training: stale gradients" + (f", {format.staleness(mean, most)}" if known else "")
