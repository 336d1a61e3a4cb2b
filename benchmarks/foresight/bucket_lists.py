"""Lists of DDP's bucket caps, as predicted to be the best, against single caps: measured in turns over 1 Gbit/s.

    python -m benchmarks.foresight.bucket_lists OUT [--table FILE]

For each of `unlike_models`, and for some by one of our own algorithms, which reduces one bucket at a time, while gloo
reduces two, OUT/lists has what a prediction is made of: what a rank computes alone, two trainings of two
nodes of a rank each, and all-reduces of both. From that the best list is computed, and the best single cap of a fine
grid. Then the list, single caps around the best and PyTorch's default take turns in shared launches. Prints what was
predicted and measured of each, and of the list against the best single cap that was measured the ratio of step times
with its 90 % interval. --table writes it as Markdown. A session that is complete is not run again. Needs what
`benchmarks.foresight.truth` needs.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.foresight.machines import STORE, Machine, Session, trainings
from benchmarks.foresight.markdown import table
from benchmarks.foresight.truth import finished
from benchmarks.hosts import NoNodes
from parabench.analysis.prediction.base import base_of
from parabench.analysis.prediction.buckets import assigned
from parabench.analysis.prediction.choose import SINGLE_CAPS, bucket_list
from parabench.analysis.prediction.predict import Predictor
from parabench.analysis.session import session_data
from parabench.analysis.stats.quantiles import t_quantile
from parabench.plan.case import Case
from parabench.store.record import MIB
from parabench.store.results import load

KIND = "lists"
ALGORITHMS = ("native", "ring")
# By model and algorithm how many turns each case has in a launch: steps of a GPT are twice as long.
COMPARED = {
    ("heavy_back", "ring"): 6,
    ("heavy_back", "native"): 6,
    ("embedding_front", "ring"): 6,
    ("gpt", "native"): 3,
}
MODULE = "benchmarks.foresight.unlike_models"
ALONE, PAIR = Machine(1, 1), Machine(2, 1, "1gbit")

# How many of those that are predicted to be the fastest are measured, and which multiples of the fastest one besides.
NEAREST, FURTHER = 4, (0.5, 2.0)

# What a list is to gain over the best single cap to be called faster, and the most that it may lose.
GAIN, LOSS = 0.05, 0.01

Cap = float | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """A case with its cap or list of them: a step's seconds as predicted, and in each launch that all cases shared; and
    whether it `counts`, because no launch lacked cores."""

    cap: Cap
    predicted_s: float
    launches_s: tuple[float, ...]
    counts: bool = True

    @property
    def measured_s(self) -> float:
        """The mean over launches, on the log scale."""
        return math.exp(float(np.mean(np.log(self.launches_s))))

    @property
    def name(self) -> str:
        """How `bucket_mib` says it, in MiB."""
        if self.cap is None:
            return "default"
        return "+".join(f"{cap:.3g}" for cap in self.cap) if isinstance(self.cap, tuple) else f"{self.cap:.3g}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model's list of caps beside single caps and the default, reduced by `algorithm`. `bound` is how many times as
    long as by the list a step is predicted to take by the best of `SINGLE_CAPS`, `advised` what `predict --buckets`
    says to take: the list, or a single cap."""

    model: str
    algorithm: str
    listed: Measurement
    singles: tuple[Measurement, ...]
    default: Measurement
    advised: Measurement
    bound: float

    @property
    def best_single(self) -> Measurement:
        """The fastest as it was measured."""
        return min(self.singles, key=lambda each: each.measured_s)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The list's step by that of the best single cap, and its 90 % interval: of launches that both shared."""
        return ratio_of(self.listed.launches_s, self.best_single.launches_s)

    @property
    def verdict(self) -> str:
        """What became of the prediction."""
        if not (self.listed.counts and self.best_single.counts):
            return "does not count: cores were the limit"
        if self.advised is self.listed:
            return f"advised; {verdict(self.ratio[0], self.bound)}"
        ratio = ratio_of(self.advised.launches_s, self.best_single.launches_s)[0]
        told = f"wrong: more than {LOSS:.0%} slower" if ratio > 1 + LOSS else f"at most {LOSS:.0%} slower"
        return f"advised instead: {self.advised.name} MiB, which takes {ratio:.3f} times as long, {told}"


def ratio_of(some_s: Sequence[float], others_s: Sequence[float]) -> tuple[float, float, float]:
    """How many times as long the first take as the second, in pairs, with the ends of a 90 % interval; of a single pair
    there is none."""
    logs = np.log(some_s) - np.log(others_s)
    mean, n = float(logs.mean()), len(logs)
    half = t_quantile(0.95, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half) if half < math.inf else math.inf


def verdict(ratio: float, bound: float) -> str:
    """Of a list that takes `ratio` times as long as the best single cap, which was predicted to take `bound` times as
    long as the list."""
    if ratio > 1 + LOSS:
        return f"wrong: more than {LOSS:.0%} slower"
    if 1 / ratio >= 1 + GAIN:
        return f"at least {GAIN:.0%} faster"
    if bound < 1 + LOSS:
        return f"no list gains {LOSS:.0%}"
    return f"less than {GAIN:.0%} faster"


def judged_by(sizes: Sequence[int], predicted: Mapping[float, float]) -> list[float]:
    """The single caps to measure, in MiB, ascending: those predicted to be the fastest, of caps that make the same
    buckets of gradients of these sizes, in bytes by readiness, one; and FURTHER ones."""
    seen: dict[tuple[int, ...], float] = {}
    for cap in sorted(predicted, key=lambda each: predicted[each]):
        seen.setdefault(_starts(sizes, cap), cap)
    nearest = list(seen.values())[:NEAREST]
    for times in FURTHER:
        cap = times * nearest[0]
        if _starts(sizes, cap) not in {_starts(sizes, each) for each in nearest}:
            nearest.append(cap)
    return sorted(nearest)


def _same(sizes: Sequence[int], cap: Cap, other: Cap) -> bool:
    """Whether two single caps make the same buckets."""
    if isinstance(cap, float) and isinstance(other, float):
        return _starts(sizes, cap) == _starts(sizes, other)
    return cap == other


def _starts(sizes: Sequence[int], cap: float) -> tuple[int, ...]:
    return tuple(group[0] for group in assigned(sizes, [round(cap * MIB)]))


def collectives() -> Session:
    """All-reduces of two nodes, of small messages too: a list is a trade of many against large ones."""
    words = ["collectives", "--world-size", "2", "--algorithm", ",".join(ALGORITHMS), "--op", "all_reduce"]
    words += ["--min", "4KiB", "--max", "16MiB", "--launches", "2", "--batches", "5"]
    words += ["--iterations", "4", "--warmup", "2"]
    return Session(f"collectives-{PAIR}", PAIR, tuple(words))


def base(model: str) -> list[Session]:
    """What a prediction of the model on two nodes is made of, besides collectives."""
    common = {"model": f"{MODULE}:{model}", "warmup": 2, "launches": 2}
    ddp = {"strategy": "ddp", "batch_per_rank": 1}
    single = {"strategy": "single", "batch_per_rank": 1}
    pairs = ddp | {"algorithm": ALGORITHMS, "bucket_mib": (None, 1)}
    return [
        trainings(f"{model}-1x1", ALONE, [single], [ddp | {"world_size": 2}], steps=12, instrumented=4, **common),
        trainings(f"{model}-{PAIR}", PAIR, [pairs], steps=12, instrumented=0, **common),
    ]


def in_turns(model: str, algorithm: str, caps: Sequence[Cap]) -> Session:
    """These caps and lists, which take turns."""
    cases = [{"strategy": "ddp", "algorithm": algorithm, "batch_per_rank": 1, "bucket_mib": tuple(caps)}]
    protocol = {"warmup": 3, "steps": 5, "launches": 5, "instrumented": 0, "rounds": COMPARED[model, algorithm]}
    return trainings(f"{model}-{algorithm}-turns", PAIR, cases, model=f"{MODULE}:{model}", **protocol)


def compared(out: Path, model: str, algorithm: str) -> Comparison | None:
    """Measure what is missing of a model, and compare; None where a session failed."""
    sessions = [*base(model), collectives()]
    if not all(finished(KIND, each, out / KIND / each.name) for each in sessions):
        return None
    predictor = Predictor(base_of([load(out / KIND / each.name / STORE) for each in sessions]), {})
    trained = (each.case for each in predictor.base.measured if each.case.nodes == PAIR.nodes)
    case = next(each for each in trained if each.algorithm == algorithm)
    found = bucket_list(predictor, case)
    singles = {cap: predictor.predict(replace(case, bucket_mib=cap)).step_s for cap in SINGLE_CAPS}
    sizes = [each.bytes for each in predictor.computed(case).program.gradients]
    listed = found.buckets.caps_mib
    told = found.single.case.bucket_cap
    caps = [None, *judged_by(sizes, singles)]
    if not any(_same(sizes, told, cap) for cap in caps):
        caps.append(told)
    turns = in_turns(model, algorithm, [*caps, listed])
    folder = out / KIND / turns.name
    counts = {each.case.id: each.counts for each in finished(KIND, turns, folder)}
    rows = []
    for planned, launches in shared(folder) if counts else ():
        step_s = predictor.predict(replace(case, bucket_mib=planned.bucket_mib)).step_s
        rows.append(Measurement(planned.bucket_mib, step_s, launches, counts[planned.id]))
    of_list = next((each for each in rows if isinstance(each.cap, tuple)), None)
    of_default = next((each for each in rows if each.cap is None), None)
    own = tuple(each for each in rows if isinstance(each.cap, float))
    if of_list is None or of_default is None or not own:
        return None
    advised = of_list if found.advised else next(each for each in (of_default, *own) if _same(sizes, each.cap, told))
    return Comparison(model, algorithm, of_list, own, of_default, advised, min(singles.values()) / of_list.predicted_s)


def shared(folder: Path) -> Iterator[tuple[Case, tuple[float, ...]]]:
    """Each case of the newest session in a folder, with its step in each launch that all cases shared to their end."""
    seen = session_data(load(folder / STORE))
    turns = seen.timed[seen.timed["in_turns"]]
    whole = turns.pivot(index="shared_launch", columns="case_id", values="launch_step_s").dropna()
    for name in whole.columns:
        yield seen.planned[str(name)], tuple(whole[name].tolist())


TITLE = """# Lists of bucket caps against single caps

`python -m benchmarks.foresight.bucket_lists OUT --table FILE` (part of `make foresight`) writes this page: DDP on two
nodes of a rank each, over 1 Gbit/s, by gloo's own all-reduce and by parabench's ring, in turns within shared launches
on two cores. The models are those of `benchmarks/foresight/unlike_models.py`.

"""
HEAD = ("model", "algorithm", "caps, MiB", "predicted, ms", "measured, ms", "")


def rows_of(of: Comparison) -> Iterator[tuple[str, ...]]:
    """The table's rows of a model: the list, single caps from the smallest, the default."""
    for each in (of.listed, *sorted(of.singles, key=lambda each: each.predicted_s), of.default):
        what = ["the list"] * (each is of.listed) + ["best single cap"] * (each is of.best_single)
        what += ["advised"] * (each is of.advised) + ["lacked cores"] * (not each.counts)
        times = (f"{seconds * 1e3:.1f}" for seconds in (each.predicted_s, each.measured_s))
        yield of.model, of.algorithm, each.name, *times, ", ".join(what)


def said(of: Comparison) -> str:
    """The comparison in a line."""
    ratio, low, high = of.ratio
    return (
        f"{of.model} by {of.algorithm}: the list takes {ratio:.3f} times as long as the best single cap (90 % interval "
        f"{low:.3f} to {high:.3f}, {len(of.listed.launches_s)} launches), predicted {1 / of.bound:.3f}; {of.verdict}"
    )


def markdown(comparisons: Sequence[Comparison]) -> str:
    """All of it, as the docs have it."""
    rows = (row for each in comparisons for row in rows_of(each))
    return table((HEAD, *rows)) + "\n" + "".join(f"- {said(each)}\n" for each in comparisons)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foresight.bucket_lists")
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--model", choices=sorted({model for model, _ in COMPARED}), help="the only one to measure")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pairs = [each for each in COMPARED if asked.model in (None, each[0])]
    try:
        found = [each for pair in pairs if (each := compared(asked.out, *pair)) is not None]
    except NoNodes as why:
        print(why, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    for each in found:
        for row in rows_of(each):
            print("  ".join(row))
        print(said(each))
    if asked.table:
        asked.table.write_text(TITLE + markdown(found))
    sys.exit(0 if len(found) == len(pairs) else 1)


if __name__ == "__main__":
    main()
