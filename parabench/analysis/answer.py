"""The sweet spot as data, and how it is said."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from parabench.analysis import words
from parabench.analysis.effects import MOST_BLOCKS
from parabench.analysis.headroom import Headroom

# Differences below this are not worth another night of blocks: it is also what `compare` tolerates.
SHARP_ENOUGH = 0.02


@dataclass(frozen=True)
class Candidate:
    """One configuration's place.

    `slower` is against the fastest, as a fraction; `plus_minus_s` is the latency's 95 % half-width. `tokens_per_s`
    counts `unit`, which is samples where the model takes no sequences. `other_training`: it does not compute what one
    device does, since gradients come late; by how many updates says its staleness, None where it is not known.
    """

    case_id: str
    label: str
    strategy: str
    latency_s: float
    plus_minus_s: float | None
    tokens_per_s: float
    unit: str
    slower: float
    launches: int
    other_training: bool = False
    staleness_mean: float | None = None
    staleness_max: float | None = None

    def stale(self) -> str:
        """How stale its gradients were: '1.5 updates on average, 4 at most'."""
        if self.staleness_mean is None or self.staleness_max is None:
            return "by how many updates is unknown"
        return words.staleness(self.staleness_mean, self.staleness_max)


@dataclass(frozen=True)
class Answer:
    """The sweet spot among the configurations that do one work.

    `heading` sets this work apart from the session's others: 'global batch 16'; empty where there is one.
    `equals` are those that cannot be told apart from `best`, which is not among them; `half_width` is the
    widest simultaneous 95 % half-width against `best` that decides between them, as a fraction; None when
    there is none. `decided` is False when the data cannot separate anything; `why_not` then says why.
    `unverified` are the labels whose training was not compared with one device's. `differing` are the fields of a case
    in which the configurations differ. `headroom` is what was measured without any communication, which is never among
    the configurations; `same_training` the fastest that computes what one device does, where the best does not.
    """

    heading: str
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
    unverified: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    headroom: Headroom | None = None
    same_training: Candidate | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: unknown is null."""
        return asdict(self) | {"sentence": self.sentence()}

    def sentence(self) -> str:
        """The answer as a person would say it, after its heading."""
        return f"{self.heading}: {self.plain_sentence()}" if self.heading else self.plain_sentence()

    def plain_sentence(self) -> str:
        """The answer without its heading."""
        if self.best is None:
            return self.why_not or ""
        best = self.best
        number = words.milliseconds(best.latency_s) + " a step"
        if best.plus_minus_s is not None:
            number += f" (±{words.margin(best.plus_minus_s, best.latency_s)})"
        number += f", {words.throughput(best.tokens_per_s, best.unit)}"
        if not self.decided:
            place = "Fastest so far" if self.equals else "Measured"
            said = [f"{self.why_not} {place}: {best.label}: {number}."]
        else:
            said = [*self._place(number), self._blocks(), self._default()]
        said += [self._other_training(), self.headroom.sentence() if self.headroom else "", self._unverified()]
        return " ".join(sentence for sentence in said if sentence)

    def _place(self, number: str) -> list[str]:
        assert self.best is not None
        blocks = words.count(self.blocks, "block")
        if self.equals and not self.slower:
            everything = words.count(len(self.equals) + 1, "configuration")
            found = f"No difference was found between the {everything} with {blocks}"
            if self.differing == ("bucket_mib",):
                found = f"The bucket size makes no difference that {blocks} could show ({everything})"
            spread = max(candidate.slower for candidate in self.equals)
            return [
                f"{found}: the slowest is {words.percent(spread)} from the fastest.",
                f"Nominally first: {self.best.label}: {number}.",
            ]
        said = [f"Fastest: {self.best.label}: {number}."]
        if self.equals:
            equals = words.listed((candidate.label for candidate in self.equals), most=3)
            said.append(f"Cannot be told apart from it with {blocks}: {equals}.")
        elif len(self.slower) == 1:
            said.append(f"{self.slower[0].label} is {words.percent(self.slower[0].slower)} slower ({blocks}).")
        else:
            others = words.count(len(self.slower), "other configuration")
            said.append(
                f"It is faster than the {others} with {blocks}; "
                f"the next is {self.slower[0].label}, {words.percent(self.slower[0].slower)} slower."
            )
        return said

    def _other_training(self) -> str:
        assert self.best is not None
        others = [each for each in (self.best, *self.equals) if each.other_training]
        said = [
            f"{each.label} is another training than one device's: its gradients are stale ({each.stale()})."
            for each in others
        ]
        if len(others) > 1:
            several = words.listed((f"{each.label} ({each.stale()})" for each in others), most=3)
            said = [f"Other trainings than one device's, with stale gradients: {several}."]
        if self.same_training is not None:
            latency = words.milliseconds(self.same_training.latency_s)
            said.append(f"The fastest that trains as one device does: {self.same_training.label}: {latency} a step.")
        return " ".join(said)

    def _blocks(self) -> str:
        if self.more_blocks is None:
            return ""
        difference = f"a difference of {100 * SHARP_ENOUGH:g} %"
        if self.blocks + self.more_blocks > MOST_BLOCKS:
            return f"More than {MOST_BLOCKS} blocks would be needed to tell {difference}: too noisy."
        return f"About {words.count(self.more_blocks, 'more block')} would tell {difference}."

    def _unverified(self) -> str:
        if not self.unverified:
            return ""
        labels = words.listed(self.unverified, most=3)
        return f"Not verified, because the run on one device failed: {labels}."

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
