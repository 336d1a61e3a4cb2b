"""Compare predictions with step times that they have not seen.

    python -m benchmarks.prediction.held_out [--record TRUTH] [--table FILE] [--figure FILE]

The step times are the recorded truth (`benchmarks.prediction.recorded`); --record reads it from TRUTH, a folder of
`benchmarks.prediction.truth`, and keeps it. Each held-out case is predicted from one node of two ranks and, if it has
several nodes, from two nodes of one rank over links of the same rate: `measured` links. With several nodes, it is
predicted once more from one node and the rate of the link: `given`. A case is left out if the cores were the limit.

Prints for each kind of links the median and the 90th percentile of the errors, and the share of 90% intervals that hold
the measured step time. --table writes all cases as Markdown, --figure draws them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.prediction import markdown
from benchmarks.prediction.machines import Machine
from benchmarks.prediction.measured import LEAST_IDLE
from benchmarks.prediction.recorded import Truth, base_of_sessions, record, truths
from benchmarks.prediction.sessions import TOGETHER
from docs.drawing.prediction import Point
from docs.drawing.prediction import held_out as held_out_picture
from parabench.analysis.collectives.rounds import BETWEEN
from parabench.analysis.prediction.links import Link, given_link
from parabench.analysis.prediction.predict import Prediction, Predictor, Refused

MEASURED, GIVEN = "measured", "given"

# Of 1514 bytes on a link TCP has 1448; a message of a few bytes takes as long as a thread's wake-up or two.
PAYLOAD, LATENCY = 1448 / 1514, "100us"
MBIT = {"300mbit": 300, "1gbit": 1000}


@dataclass(frozen=True, slots=True)
class Held:
    """A held-out case, and its prediction from `links` that were MEASURED or GIVEN."""

    truth: Truth
    links: str
    prediction: Prediction

    @property
    def error(self) -> float:
        """The size of the logarithm of predicted by measured."""
        return abs(math.log(self.prediction.step_s / self.truth.step_s))

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured step time."""
        return self.prediction.low_s <= self.truth.step_s <= self.prediction.high_s


def held_out() -> Iterator[Held]:
    """Yield all predictions of held-out cases that count."""
    for each in truths():
        if each.idle < LEAST_IDLE:
            continue
        for links in (MEASURED, GIVEN) if each.machine.rate else (MEASURED,):
            answer = _predictor(each.machine, links).predict(each.case)
            if isinstance(answer, Prediction):
                yield Held(each, links, answer)


@cache
def _predictor(machine: Machine, links: str) -> Predictor:
    given: dict[str, Link] = {}
    names = ["train-1x1", "train-1x2", "collectives-1x2"]
    if machine.rate is not None and links == GIVEN:
        given[BETWEEN] = given_link(f"{MBIT[machine.rate] * PAYLOAD / 8:.4g}MB/s,{LATENCY}")
    elif machine.rate is not None and links == MEASURED:
        names += [f"train-2x1-{machine.rate}", f"collectives-2x1-{machine.rate}"]
    base = base_of_sessions(*names)
    together = base_of_sessions(f"compute-{min(machine.ranks, max(TOGETHER))}").computed
    # Ranks that computed together on one machine are the ranks of an emulated cluster.
    on_nodes = (replace(each, case=each.case.replace(nodes=machine.nodes)) for each in together)
    return Predictor(replace(base, computed=(*base.computed, *on_nodes)), given)


def summary(held: Sequence[Held]) -> Iterator[str]:
    """Return the figures of each kind of links."""
    for links in (MEASURED, GIVEN):
        known = [each for each in held if each.links == links]
        errors = np.array([each.error for each in known])
        inside = sum(each.inside for each in known)
        yield (
            f"{links} links: {len(known)} predictions; errors: median "
            f"{np.median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}, largest {errors.max():.1%}; "
            f"{inside} in their 90% interval ({inside / len(known):.0%})"
        )
    across = [each.truth for each in held if each.links == GIVEN]
    answers = [_predictor(each.machine, "none").predict(each.case) for each in across]
    refused = sum(isinstance(each, Refused) for each in answers)
    yield f"without links between nodes: {refused} of {len(answers)} refused"


INTRODUCTION = """# Held-out configurations

Measured step times, and the errors of predictions from measured or given links
([method](../explanation/prediction.md)). *Outside* means that the measured step time is not in the 90% interval. A
machine is NODESxRANKS-RATE, with the rate of the links between nodes.

"""
HEAD = ("configuration", "machine", "measured, ms", "links measured", "links given")


def rows(held: Sequence[Held]) -> Iterator[tuple[str, ...]]:
    """Yield a row per configuration: the measured step time, and the prediction from each kind of links."""
    by_links = {(each.truth.machine, each.truth.case, each.links): each for each in held}
    for machine, case in dict.fromkeys(key[:2] for key in by_links):
        step_s, cells = by_links[machine, case, MEASURED].truth.step_s, []
        for links in (MEASURED, GIVEN):
            cells.append("")
            if found := by_links.get((machine, case, links)):
                outside = "" if found.inside else ", outside"
                cells[-1] = f"{found.prediction.step_s / step_s - 1:+.1%}{outside}"
        yield (case.label.partition(",")[0], str(machine), f"{step_s * 1e3:.0f}", *cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction.held_out")
    parser.add_argument("--record", type=Path, metavar="TRUTH")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    if asked.record:
        record(asked.record)
    found = list(held_out())
    for row in rows(found):
        print("  ".join(row))
    for text in summary(found):
        print(text)
    if asked.figure:
        points = [
            Point(each.truth.step_s, one.step_s, one.low_s, one.high_s, each.truth.case.strategy)
            for each in found
            if each.links == MEASURED and (one := each.prediction)
        ]
        asked.figure.write_text(held_out_picture(points))
    if asked.table:
        asked.table.write_text(INTRODUCTION + markdown((HEAD, *rows(found))))


if __name__ == "__main__":
    main()
