"""How right predictions are of what they have not seen: step times of `benchmarks.foresight.truth`.

    python -m benchmarks.foresight.held_out TRUTH [--table FILE] [--figure FILE]

Each held-out case is predicted from one node of two ranks and, where it has several nodes, from two nodes of one rank
over links of the same rate: `measured` links. Where there are, it is predicted once more from one node alone and what
the link is said to carry: `given`. A case whose cores were the limit is left out, and says so. Prints, of each kind of
link, the median and the 90th percentile of the errors, how many intervals hold what was measured, and the same of the
naive forecasts; --table writes all cases as Markdown, --figure draws them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.foresight.machines import DONE, STORE, Machine
from benchmarks.foresight.markdown import table
from benchmarks.foresight.measured import measured
from benchmarks.foresight.sessions import TOGETHER, held
from docs.drawing.foresight import Point
from docs.drawing.foresight import held_out as held_out_picture
from parabench.analysis.prediction.base import Base, base_of
from parabench.analysis.prediction.network import Link, given_link
from parabench.analysis.prediction.predict import Prediction, Predictor
from parabench.analysis.prediction.schedule import BETWEEN
from parabench.plan.case import Case
from parabench.store.results import load

MEASURED, GIVEN = "measured", "given"

# Of 1514 bytes on a link TCP has 1448; a message of a few bytes takes as long as a thread's wake-up or two.
PAYLOAD, LATENCY = 1448 / 1514, "100us"
MOST_TOGETHER = max(TOGETHER)
MBIT = {"100mbit": 100, "300mbit": 300, "1gbit": 1000}


@dataclass(frozen=True, slots=True)
class Held:
    """A case that was measured on a machine, and its prediction from `links` that were MEASURED or GIVEN. All is in the
    folder `truth`; so much of the CPU's time was `idle`."""

    truth: Path
    machine: Machine
    case: Case
    step_s: float
    links: str
    prediction: Prediction
    idle: float

    @property
    def error(self) -> float:
        """Predicted by measured, less 1; NaN where it was refused."""
        return self.prediction.step_s / self.step_s - 1

    @property
    def sample_s(self) -> float:
        """Measured seconds for a sample, by which cases of different batches are compared."""
        return self.step_s / self.case.global_batch

    @property
    def inside(self) -> bool:
        """Whether the interval holds it."""
        return self.prediction.low_s <= self.step_s <= self.prediction.high_s


def held_out(truth: Path) -> Iterator[Held]:
    """All predictions of held-out cases that count."""
    for session in held():
        folder, machine = truth / "held" / session.name, session.machine
        if not (folder / DONE).exists():
            continue
        for each in measured(folder):
            if not each.counts or each.step_s is None or not isinstance(each.case, Case):
                print(f"left out: {each.case.label} on {machine}: {each}")
                continue
            kinds = (MEASURED, GIVEN) if machine.rate else (MEASURED,)
            for links in kinds:
                found = _predictor(truth, machine.rate, links, machine.ranks).predict(each.case)
                yield Held(truth, machine, each.case, each.step_s, links, found, each.least_idle)


@cache
def _predictor(truth: Path, rate: str | None, links: str, ranks: int) -> Predictor:
    given: dict[str, Link] = {}
    if rate is not None and links == GIVEN:
        given[BETWEEN] = given_link(f"{MBIT[rate] * PAYLOAD / 8:.4g}MB/s,{LATENCY}")
    base = _base(truth, rate if links == MEASURED else None)
    # The nodes of an emulated cluster have one machine's cores; not more than MOST_TOGETHER ranks run on it alone.
    together = load(truth / "base" / f"compute-{min(ranks, MOST_TOGETHER)}" / STORE)
    return Predictor(base, given, base_of([together]).computed)


@cache
def _base(truth: Path, rate: str | None) -> Base:
    names = ["train-1x1", "train-1x2", "collectives-1x2"]
    if rate is not None:
        names += [f"train-2x1-{rate}", f"collectives-2x1-{rate}"]
    return base_of([load(truth / "base" / name / STORE) for name in names])


def summary(held: Sequence[Held]) -> Iterator[str]:
    """The figures of each kind of links."""
    for links in (MEASURED, GIVEN):
        own = [each for each in held if each.links == links]
        told = [each for each in own if each.prediction.refused is None]
        if told:
            yield f"{links} links: {len(told)} cases, {len(own) - len(told)} refused"
            yield from (f"  {said}" for said in (*_errors(told), *_naive(told), *_choices(told)))
    unmeasured = [_refused(each) for each in held if each.links == MEASURED and each.machine.rate]
    yield f"questions about links that were neither measured nor given: {sum(unmeasured)} of {len(unmeasured)} refused"


def _errors(told: Sequence[Held]) -> Iterator[str]:
    errors = np.array([off(each.prediction.step_s, each.step_s) for each in told])
    inside = sum(each.inside for each in told)
    yield (
        f"errors: median {np.median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}, largest "
        f"{errors.max():.1%}; {inside} of {len(told)} within their 90 % interval ({inside / len(told):.0%})"
    )


def _naive(told: Sequence[Held]) -> Iterator[str]:
    """Naive forecasts of the same cases, and how often a prediction is worse than both by more than 1 %."""
    for name in ("constant_s", "line_s"):
        pairs = [(step, each.step_s) for each in told if (step := getattr(each.prediction, name))]
        errors = [off(*pair) for pair in pairs]
        if errors:
            yield f"naive, {name.removesuffix('_s')}: median error {np.median(errors):.1%} of {len(errors)} cases"
    worse = [each for each in told if _worse(each)]
    yield f"worse than both naive forecasts by more than 1 %: {len(worse)} of {len(told)}"


def _worse(each: Held) -> bool:
    naive = [step for step in (each.prediction.constant_s, each.prediction.line_s) if step]
    return len(naive) == 2 and off(each.prediction.step_s, each.step_s) > max(off(n, each.step_s) for n in naive) + 0.01


def _choices(told: Sequence[Held]) -> Iterator[str]:
    """Of each machine how much slower, a sample, what is predicted to be the fastest is than what was."""
    regrets = []
    for machine in dict.fromkeys(each.machine for each in told):
        own = [each for each in told if each.machine == machine]
        chosen = min(own, key=lambda each: each.prediction.sample_s)
        regrets.append((chosen.sample_s / min(each.sample_s for each in own) - 1, machine, chosen))
    worst, machine, chosen = max(regrets, key=lambda each: each[0])
    right = sum(regret <= 0.03 for regret, *_ in regrets)
    yield (
        f"what is predicted to be the fastest: at most 3 % slower than the true one on {right} of {len(regrets)} "
        f"machines, {worst:.1%} at most ({chosen.case.label} on {machine})"
    )


def _refused(each: Held) -> bool:
    """Whether nothing is predicted from one node alone with no link given."""
    return Predictor(_base(each.truth, None), {}).predict(each.case).refused is not None


def off(predicted_s: float, measured_s: float) -> float:
    """By how much two times differ, as the size of the logarithm of their ratio."""
    return abs(math.log(predicted_s / measured_s))


def line(each: Held) -> tuple[str, ...]:
    """A row of the table."""
    found = each.prediction
    if found.refused is not None:
        told = ("refused", "", "", found.refused)
    else:
        told = (
            f"{found.step_s * 1e3:.1f}",
            f"{found.low_s * 1e3:.1f} to {found.high_s * 1e3:.1f}",
            f"{each.error:+.1%}",
            "" if each.inside else "outside",
        )
    return (each.case.label, str(each.machine), each.links, f"{each.step_s * 1e3:.1f}", *told)


HEAD = ("case", "machine", "links", "measured, ms", "predicted, ms", "90 % interval", "error", "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foresight.held_out")
    parser.add_argument("truth", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    found = list(held_out(asked.truth))
    for each in found:
        print("  ".join(line(each)))
    for said in summary(found):
        print(said)
    if asked.figure:
        points = [
            Point(
                each.step_s, each.prediction.step_s, each.prediction.low_s, each.prediction.high_s, each.case.strategy
            )
            for each in found
            if each.links == MEASURED and each.prediction.refused is None
        ]
        asked.figure.write_text(held_out_picture(points))
    if asked.table:
        asked.table.write_text(table((HEAD, *map(line, found))))


if __name__ == "__main__":
    main()
