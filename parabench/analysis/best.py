"""The sweet spot: which configurations cannot be told apart from the fastest, said in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from parabench.analysis import words
from parabench.analysis.effects import MOST_BLOCKS, Effects, fit
from parabench.analysis.frames import case_table, launch_table, ranked, same_work, select_session
from parabench.record import REFERENCE_BLOCK
from parabench.store import Results

CONFIDENCE = 0.95
# Differences below this are not worth another night of blocks: it is also what `compare` tolerates.
SHARP_ENOUGH = 0.02


@dataclass(frozen=True)
class Candidate:
    """One configuration's place. `slower` is against the fastest, as a fraction; `plus_minus_s` its 95 % half-width."""

    case_id: str
    label: str
    latency_s: float
    plus_minus_s: float | None
    tokens_per_s: float
    slower: float
    launches: int


@dataclass(frozen=True)
class Answer:
    """The sweet spot among the configurations that do one work.

    `equals` are those that cannot be told apart from `best`, which is not among them; `half_width` is the widest
    simultaneous 95 % half-width against `best` that decides between them, as a fraction; None when there is none.
    `decided` is False when the data cannot separate anything; `why_not` then says why.
    """

    work: dict[str, Any]
    statistic: str
    blocks: int
    launches: int
    best: Candidate | None
    equals: tuple[Candidate, ...]
    slower: tuple[Candidate, ...]
    default: Candidate | None
    half_width: float | None
    more_blocks: int | None
    decided: bool
    why_not: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: unknown is null."""
        return asdict(self)

    def sentence(self) -> str:
        """The answer as a person would say it."""
        if self.best is None:
            return self.why_not or ""
        best = self.best
        margin = "" if best.plus_minus_s is None else f" (±{words.milliseconds(best.plus_minus_s)})"
        number = f"{words.milliseconds(best.latency_s)} a step{margin}, {words.throughput(best.tokens_per_s)}"
        if not self.decided:
            return f"{self.why_not} {'Measured' if not self.equals else 'Fastest so far'}: {best.label}: {number}."
        said = [*self._place(number), self._blocks(), self._default()]
        return " ".join(sentence for sentence in said if sentence)

    def _place(self, number: str) -> list[str]:
        assert self.best is not None
        blocks = words.count(self.blocks, "block")
        if self.equals and not self.slower:
            everything = words.count(len(self.equals) + 1, "configuration")
            found = f"No difference was found between the {everything} with {blocks}"
            if self._only_buckets():
                found = f"The bucket size makes no difference that {blocks} could show ({everything})"
            spread = max(candidate.slower for candidate in self.equals)
            return [
                f"{found}: the slowest is {words.percent(spread)} from the fastest.",
                f"Nominally first: {self.best.label}: {number}.",
            ]
        said = [f"Fastest: {self.best.label}: {number}."]
        if self.equals:
            said.append(
                f"Cannot be told apart from it with {blocks}: {words.listed(c.label for c in self.equals)}."
            )
        else:
            said.append(
                f"It is faster than the {words.count(len(self.slower), 'other configuration')} with {blocks}; "
                f"the next is {self.slower[0].label}, {words.percent(self.slower[0].slower)} slower."
                if len(self.slower) > 1
                else f"{self.slower[0].label} is {words.percent(self.slower[0].slower)} slower ({blocks})."
            )
        return said

    def _only_buckets(self) -> bool:
        """Whether labels differ in the bucket size alone."""
        assert self.best is not None
        labels = [self.best.label, *(candidate.label for candidate in self.equals)]
        stems = {
            (label.split(" MiB")[0].rpartition(" ")[0] if " MiB" in label else label.partition(",")[0])
            + label.partition(",")[2]
            for label in labels
        }
        return len(stems) == 1

    def _blocks(self) -> str:
        if self.more_blocks is None:
            return ""
        difference = f"a difference of {words.percent(SHARP_ENOUGH)}"
        if self.blocks + self.more_blocks > MOST_BLOCKS:
            return f"More than {MOST_BLOCKS} blocks would be needed to tell {difference}; this machine is too noisy."
        return f"About {words.count(self.more_blocks, 'more block')} would tell {difference}."

    def _default(self) -> str:
        if self.default is None or self.best is None:
            return ""
        if self.default.case_id == self.best.case_id:
            return "It is PyTorch's default."
        if self.default.case_id in {candidate.case_id for candidate in self.equals}:
            return f"PyTorch's default ({self.default.label}) is among those." if self.slower else ""
        return (
            f"PyTorch's default (ddp native, default bucket, same world size) is "
            f"{words.percent(self.default.slower)} slower."
        )


@dataclass(frozen=True)
class Verdict:
    """One answer per work; at least one."""

    answers: tuple[Answer, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: unknown is null."""
        return {"answers": [answer.to_dict() | {"sentence": answer.sentence()} for answer in self.answers]}

    def sentence(self) -> str:
        """All answers, one a line; each names its work when there are several."""
        if len(self.answers) == 1:
            return self.answers[0].sentence()
        return "\n".join(f"{self.heading(answer)}: {answer.sentence()}" for answer in self.answers)

    def heading(self, answer: Answer) -> str:
        """What sets this answer's work apart from the others': 'global batch 16, cpu'."""
        differing = [
            name for name in answer.work if len({str(other.work.get(name)) for other in self.answers}) > 1
        ]
        plain = ("model", "data", "dtype", "device")
        return ", ".join(
            str(answer.work[name]) if name in plain else f"{name.replace('_', ' ')} {answer.work[name]}"
            for name in differing
        )


def best(results: Results, session: str | int | None = None) -> Verdict:
    """The sweet spot of a session (default: the newest), one answer per work. Raises UsageError for no such session."""
    launches = launch_table(results, select_session(results, session))
    return verdict(launches)


def verdict(launches: pd.DataFrame) -> Verdict:
    """The same from a launch table."""
    own = launches[launches["block"] != REFERENCE_BLOCK]
    if own.empty:
        return Verdict((_nothing({}, own, "No launch was recorded, so there is no fastest configuration."),))
    return Verdict(tuple(_answer(work, group) for work, group in same_work(own)))


def _answer(work: dict[str, Any], own: pd.DataFrame) -> Answer:
    good = ranked(own)
    if good.empty:
        counts = own["status"].value_counts(sort=False)
        how = ", ".join(f"{n} {status}" for status, n in counts.items())
        return _nothing(
            work, own, f"No launch ended well with a latency, so there is no fastest configuration ({how})."
        )
    effects = fit(good)
    cases = case_table(own).set_index("case_id")
    order = sorted(effects.cases, key=lambda case: effects.means[case])
    first = order[0]
    candidates = {case: _candidate(case, first, effects, cases) for case in order}
    why_not = _why_not(effects)
    near = order if why_not else effects.indistinguishable(first, CONFIDENCE)
    equals = tuple(candidates[case] for case in near if case != first)
    slower = tuple(candidates[case] for case in order if case not in near)
    half_width, more = None, None
    if not why_not:
        widths = [
            effects.half_width(case, first, CONFIDENCE)
            for case in (near if equals else order)
            if case != first
        ]
        widest = max(widths)
        half_width = words.number_or_none(math.expm1(widest))
        if equals and (half_width is None or half_width > SHARP_ENOUGH):
            # At least one: a missing launch can make the interval wide where the plan's blocks would have been enough.
            more = max(1, effects.blocks_for(math.log1p(SHARP_ENOUGH), CONFIDENCE) - effects.n_blocks)
    return Answer(
        work=work,
        statistic=str(own["statistic"].iloc[0]),
        blocks=effects.n_blocks,
        launches=len(good),
        best=candidates[first],
        equals=equals,
        slower=slower,
        default=_default(candidates[first], cases, candidates),
        half_width=half_width,
        more_blocks=more,
        decided=not why_not,
        why_not=why_not,
    )


def _why_not(effects: Effects) -> str | None:
    if len(effects.cases) == 1:
        return "Only one configuration has a result, so there is nothing to rank."
    if effects.n_blocks < 2:
        return "One block cannot tell a difference from noise: run at least 2 blocks, better 3 or more."
    if effects.df < 1:
        return "Too few launches ended well to tell a difference from noise: run more blocks."
    return None


def _candidate(case: str, first: str, effects: Effects, cases: pd.DataFrame) -> Candidate:
    row = cases.loc[case]
    latency = math.exp(effects.means[case])
    margin = effects.own_half_width(case, CONFIDENCE)
    return Candidate(
        case_id=case,
        label=str(row["label"]),
        latency_s=latency,
        plus_minus_s=words.number_or_none(latency * math.expm1(margin)) if math.isfinite(margin) else None,
        tokens_per_s=float(row["global_batch"]) * float(row["seq_len"]) / latency,
        slower=math.expm1(effects.means[case] - effects.means[first]),
        launches=effects.n[case],
    )


def _default(best_one: Candidate, cases: pd.DataFrame, candidates: dict[str, Candidate]) -> Candidate | None:
    world_size = cases.loc[best_one.case_id, "world_size"]
    default = cases[
        (cases["strategy"] == "ddp")
        & (cases["algorithm"] == "native")
        & cases["bucket_mib"].isna()
        & (cases["world_size"] == world_size)
    ]
    found: Sequence[Candidate] = [candidates[case] for case in default.index if case in candidates]
    return found[0] if found else None


def _nothing(work: dict[str, Any], own: pd.DataFrame, why: str) -> Answer:
    return Answer(
        work=work,
        statistic=str(own["statistic"].iloc[0]) if len(own) else words.UNKNOWN,
        blocks=0,
        launches=0,
        best=None,
        equals=(),
        slower=(),
        default=None,
        half_width=None,
        more_blocks=None,
        decided=False,
        why_not=why,
    )
