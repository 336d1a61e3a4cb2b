"""Predictions as text, and as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from parabench.analysis.collectives.rounds import BETWEEN, WITHIN
from parabench.analysis.prediction.base import Measured
from parabench.analysis.prediction.predict import Prediction
from parabench.analysis.text import format

HEAD = (
    "configuration", "step, ms", "90% interval", "compute", "slowest", "in a node", "between nodes", "memory",
)  # fmt: skip

# Lists of names and reasons are cut to this many.
MOST_NAMES = 3

_NUMBER = re.compile(r"\d+")


def lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Return the table of what was predicted, the fastest first, then the notes, and the reasons of refusals."""
    known = sorted((each for each in predictions if each.refused is None), key=lambda each: each.step_s)
    if known:
        yield from format.aligned([HEAD, *map(_row, known)])
        yield "All times in ms."
    for note, of in _grouped(known, lambda each: each.notes).items():
        yield f"note: {named(of)}: {note}"
    yield from refusals(predictions)


def refusals(predictions: Iterable[Prediction]) -> Iterator[str]:
    """Return one line for each reason."""
    for reason, of in _grouped(predictions, lambda each: (each.refused,) if each.refused else ()).items():
        yield f"Not predicted: {named(of)}: {reason}"


def named(of: Sequence[Prediction]) -> str:
    """Return the names of configurations: 'ddp native, 4 ranks on 2 nodes; ...; and 2 more'."""
    return format.listed((each.case.label for each in of), MOST_NAMES)


def interval(each: Prediction) -> str:
    """Return '21.3 ms (90%: 19.8 to 22.9)'."""
    return f"{format.milliseconds(each.step_s)} (90%: {format.milliseconds_between(each.low_s, each.high_s)})"


def best_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Return the configuration that needs the least time for a sample, and those that may be as fast."""
    known = sorted((each for each in predictions if each.refused is None), key=lambda each: each.sample_s)
    if known:
        best, *rest = known
        yield f"{best.case.world_size} ranks: {best.case.label} is expected to be the fastest: {interval(best)}."
        level = [each for each in rest if each.low_s / each.case.global_batch <= best.sample_s]
        if level:
            yield f"{len(level)} of {len(rest)} other configurations may be as fast: {named(level)}."
    yield from refusals(predictions)


def check_lines(predictions: Sequence[Prediction], measured: Sequence[Measured]) -> Iterator[str]:
    """Return predicted against measured step times, and a summary of the errors."""
    rows = [("configuration", "measured, ms", "predicted, ms", "90% interval", "error", "")]
    errors, inside = [], 0
    for each, one in zip(predictions, measured, strict=True):
        if each.refused is not None:
            continue
        within = each.low_s <= one.step_s <= each.high_s
        inside += within
        errors.append(abs(math.log(each.step_s / one.step_s)))
        rows.append(
            (
                each.case.label,
                format.digits(one.step_s * 1e3),
                format.digits(each.step_s * 1e3),
                format.milliseconds_between(each.low_s, each.high_s),
                format.signed(each.step_s / one.step_s - 1),
                "" if within else "outside",
            )
        )
    if errors:
        yield from format.aligned(rows)
        yield (
            f"Half of {format.count(len(errors), 'prediction')} are within {format.percent(median(errors))} of the "
            f"measurement; {inside} of {len(errors)} measurements are in their 90% interval."
        )
    yield from refusals(predictions)


def to_dict(each: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON: seconds and bytes; None is unknown."""
    case = {"case": each.case.to_dict(), "label": each.case.label}
    if each.refused is not None:
        return case | {"refused": each.refused}
    names = ("step_s", "low_s", "high_s", "compute_s", "slowest_s", "peak_bytes", "measured_s")
    exposed = {"within": each.exposed_s.get(WITHIN, 0.0), "between": each.exposed_s.get(BETWEEN, 0.0)}
    return case | {name: getattr(each, name) for name in names} | {"exposed_s": exposed, "notes": list(each.notes)}


def _grouped(
    predictions: Iterable[Prediction], texts: Callable[[Prediction], tuple[str, ...]]
) -> dict[str, list[Prediction]]:
    """Return predictions by their texts; of texts that differ in numbers alone, the first stands for all."""
    first: dict[str, str] = {}
    found: dict[str, list[Prediction]] = {}
    for each in predictions:
        for text in texts(each):
            found.setdefault(first.setdefault(_NUMBER.sub("", text), text), []).append(each)
    return found


def _row(each: Prediction) -> tuple[str, ...]:
    times = (each.compute_s, each.slowest_s, each.exposed_s.get(WITHIN, 0.0), each.exposed_s.get(BETWEEN, 0.0))
    return (
        each.case.label,
        format.digits(each.step_s * 1e3),
        format.milliseconds_between(each.low_s, each.high_s),
        *(format.digits(seconds * 1e3) for seconds in times),
        format.UNKNOWN if each.peak_bytes is None else f"{format.digits(each.peak_bytes / 1e9)} GB",
    )
