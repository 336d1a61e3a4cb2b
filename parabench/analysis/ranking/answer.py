"""The sweet spot as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parabench.analysis.ranking.baseline import NoCommBaseline
from parabench.analysis.ranking.bucket_curves import Curve, Members
from parabench.analysis.ranking.by_axis import Place
from parabench.analysis.ranking.pareto import ParetoPoint
from parabench.analysis.ranking.race import Look
from parabench.analysis.stats.block_model import TOO_WIDE
from parabench.analysis.text import format
from parabench.strategies import Rule, entry_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Hold the numbers of one configuration.

    `value` is the level for the objective: the geometric mean over the launches of the configuration. `plus_minus` is
    its 95 % half-width. `step_time_s` and `plus_minus_s` are the same for a step. `launch_ids` are the launches in the
    results database. `tokens_per_s` counts `unit`, which is samples if the model takes no sequences.
    """

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
    launch_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotCompared(Measured):
    """Hold a configuration that no launch or repetition connects with those that are compared.

    `slower` is unknown for the `reason`. `status` counts how its launches ended.
    """

    status: str
    reason: str
    slower: None = None


@dataclass(frozen=True, kw_only=True)
class Candidate(Measured):
    """Hold the place of a configuration that is compared.

    `slower` is the ratio to the best in common launches and repetitions, less 1: how much longer a step or a token
    takes, how much more memory or energy. `slower_low` to `slower_high` is its 95 % interval by multiple comparisons
    with the best; None for the best itself, and if nothing is decided. `code` configures a custom script this way; only
    the best has it. `other_training`: it does not compute the same as one device, because gradients are late; the
    staleness counts updates, None if unknown.
    """

    slower: float
    slower_low: float | None
    slower_high: float | None
    code: str | None = None
    other_training: bool = False
    staleness_mean: float | None = None
    staleness_max: float | None = None


@dataclass(frozen=True)
class Answer:
    """The sweet spot among the configurations that do one work, by one `objective` (a key of `OBJECTIVES`).

    `heading` sets this work apart from the session's others: 'global batch 16'; empty where there is one.
    `statistic` is what makes one number of a launch's steps, `basis` what the objective's number is.
    `tied` are those not distinguishable from `best`, which is not among them; `members` name all of them,
    neighbouring bucket sizes together. `half_width` is the widest simultaneous 95 % half-width against `best` that
    decides between them, as a fraction; None when there is none. Where `best` shared launches, `apart` are the labels
    of those tied that shared none, and `apart_half_width` is theirs, which `half_width` leaves out. `decided` is False
    when the data cannot separate anything; `why_not` then says why.
    `unverified` are the labels whose training was not compared with one device's, `unknown` those that succeeded
    without a number for the objective. `differing` are the fields of a case in which the configurations differ.
    `no_comm_baseline` is what was measured without any communication, which is never among the configurations;
    `same_training` the fastest that computes what one device does, where the best does not. `curves` are the bucket
    curves, `front` the trade between step time and peak memory, `by` the best for each value of the axes asked for,
    `links` what measured links say of the best, in words, `race` what a race stood at after each of its blocks.
    `not_compared` are the configurations with a number that no launch or repetition connects with `best`. If no two
    are connected, `best` is None and all of them are in `not_compared`.
    """

    heading: str
    objective: str
    work: dict[str, Any]
    statistic: str
    basis: str
    blocks: int
    launches: int
    best: Candidate | None
    tied: tuple[Candidate, ...]
    slower: tuple[Candidate, ...]
    default: Candidate | None
    half_width: float | None
    more_blocks: int | None
    decided: bool
    why_not: str | None
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
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All configurations with a number, the best first."""
        return (*([self.best] if self.best else []), *self.tied, *self.slower)

    @property
    def too_wide(self) -> bool:
        """Whether the set is of several and not narrower than TOO_WIDE, or of unknown width: no winner is named."""
        return bool(self.tied) and (self.half_width is None or self.half_width >= TOO_WIDE)

    @property
    def winner(self) -> Candidate | None:
        """The best if it can be named as such: every configuration is compared, and the set of the best is a single
        one, or narrow and not of all."""
        named = self.decided and not self.too_wide and (not self.tied or bool(self.slower)) and not self.not_compared
        return self.best if named else None


# How a strategy that trains without communication is marked.
NOT_RANKED = "baseline, not ranked"
# How a configuration is marked that no launch or repetition connects with the others.
NOT_COMPARED = "not compared"
# And one that may be the fastest, as others may.
TIED = "tied"


def case_rows(cases: pd.DataFrame, answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Return the rows of the case table with `ranking` in the answers ('fastest', 'tied' or nothing).

    `mark` labels configurations that are not ranked, not compared, or train in another way.
    """
    ranking = {}
    marks: dict[str, str] = {}
    for answer in answers:
        marks.update({each.case_id: NOT_COMPARED for each in answer.not_compared})
        if answer.best is not None and answer.decided:
            ranking[answer.best.case_id] = TIED if answer.winner is None else "fastest"
            ranking.update({candidate.case_id: TIED for candidate in answer.tied})
    return [
        {str(k): v for k, v in row.items()}
        | {"ranking": ranking.get(row["case_id"], ""), "mark": marks.get(row["case_id"]) or _mark(row)}
        for row in cases.to_dict("records")
    ]


def _mark(row: Mapping[Any, Any]) -> str:
    entry = entry_of(str(row["strategy"]))
    if not entry.ranked:
        return NOT_RANKED
    if entry.rule is not Rule.APPLIED_ONCE:
        return ""
    mean, most = row["staleness_mean"], row["staleness_max"]
    known = format.known(mean) and format.known(most)
    return "another training: stale gradients" + (f", {format.staleness(mean, most)}" if known else "")
