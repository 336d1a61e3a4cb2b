"""What four ways to tell of more GPUs say of the rows of published tables, and how right that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.foresight.published_facts import Row, Table
from benchmarks.foresight.published_steps import compute_s, step_s

PREDICTED, SLOWEST, CONSTANT, LINE = "predicted", "with the slowest of N", "constant", "line"

# A forecast that is off by so much more is no worse; a line that is off by so much fails.
ALLOWANCE, FAILS = 0.01, 0.05


@dataclass(frozen=True, slots=True)
class Forecast:
    """What each way says of a row, as rates; `beyond` is a row that no way has seen."""

    table: Table
    row: Row
    rates: dict[str, float]
    beyond: bool

    def error(self, way: str) -> float:
        """Said by measured, less 1."""
        return self.rates[way] / self.row.rate - 1


def forecasts(table: Table) -> list[Forecast]:
    """Of the base row and all larger ones."""
    base, known = table.rows[table.base], table.known
    work = compute_s(table)
    spread = _spread(table, work) if len(known) > 1 else None
    found = []
    for row in table.rows[table.base :]:
        rates = {
            PREDICTED: table.per_gpu / step_s(table, row.gpus, work),
            CONSTANT: base.rate,
        }
        if spread is not None:
            rates[SLOWEST] = table.per_gpu / step_s(table, row.gpus, work * _late(table, row.gpus, spread))
            rates[LINE] = _on_the_line(known[-2:], row.gpus)
        found.append(Forecast(table, row, rates, row.gpus > known[-1].gpus and spread is not None))
    return found


def _on_the_line(known: Sequence[Row], gpus: int) -> float:
    """The straight line of the rate in log2 of the GPUs through two rows."""
    low, high = known
    slope = (high.rate - low.rate) / math.log2(high.gpus / low.gpus)
    return high.rate + slope * math.log2(gpus / high.gpus)


def _late(table: Table, gpus: int, spread: float) -> float:
    """How many times as long the slowest of the GPUs computes as that of the base row, in the median, where what each
    takes is normal with this standard deviation: `base.slowest` with a normal distribution."""

    def slowest(count: int) -> float:
        return 1 + spread * float(norm.ppf(0.5 ** (1 / count)))

    return slowest(gpus) / slowest(table.rows[table.base].gpus)


def _spread(table: Table, work: float) -> float:
    """The standard deviation with which the other known row comes out; 0 where it is faster than predicted."""
    low, high = table.known[-2:]
    other = low if high == table.rows[table.base] else high

    def off(spread: float) -> float:
        return step_s(table, other.gpus, work * _late(table, other.gpus, spread)) - table.per_gpu / other.rate

    # Of fewer GPUs than the base the step gets shorter with it.
    sign = 1 if other is high else -1
    return 0.0 if sign * off(0.0) >= 0 else float(brentq(off, 0.0, 1.0, xtol=1e-9))


def _errors(found: Sequence[Forecast], way: str) -> str:
    errors = np.abs([each.error(way) for each in found])
    return f"{way} {errors.mean():.1%} (largest {errors.max():.1%})"


def summary(found: Sequence[Forecast]) -> Iterator[str]:
    """Whether predictions are no worse than a line, and better where a line fails."""
    larger = [each for each in found if each.row != each.table.rows[each.table.base]]
    tables = len({each.table.name for each in larger})
    yield (
        f"{len(larger)} larger rows of {tables} tables, mean error: "
        + ", ".join(_errors(larger, way) for way in (PREDICTED, CONSTANT))
    )
    beyond = [each for each in larger if each.beyond]
    yield f"{len(beyond)} of them beyond both rows of the line: " + ", ".join(
        _errors(beyond, way) for way in (PREDICTED, SLOWEST, CONSTANT, LINE)
    )
    lacking = [math.log(1 + each.error(PREDICTED)) / _doublings(each) for each in larger]
    yield f"what predictions lack for each doubling of the GPUs: {np.median(lacking):.1%} in the median"
    failed = [each for each in beyond if abs(each.error(LINE)) > FAILS]
    for way in (PREDICTED, SLOWEST):
        no_worse = sum(abs(each.error(way)) <= abs(each.error(LINE)) + ALLOWANCE for each in beyond)
        better = sum(abs(each.error(way)) < abs(each.error(LINE)) for each in failed)
        yield (
            f"{way}: no worse than the line, with at most 1 % more error, in {no_worse} of {len(beyond)}; better in "
            f"{better} of {len(failed)} in which the line is off by more than 5 %"
        )
    if failed:
        inside = sum(each.table.known[-1].gpus <= each.table.machine.per_node for each in failed)
        yield f"in those, {inside} of which a line within one node goes beyond it: " + ", ".join(
            _errors(failed, way) for way in (PREDICTED, SLOWEST, CONSTANT, LINE)
        )


def _doublings(each: Forecast) -> float:
    return math.log2(each.row.gpus / each.table.rows[each.table.base].gpus)


HEAD = ("GPUs", "measured", *(f"{way}" for way in (PREDICTED, SLOWEST, CONSTANT, LINE)))


def line(each: Forecast) -> tuple[str, ...]:
    """A row of a table."""

    def said(way: str) -> str:
        if way not in each.rates or (way in (LINE, SLOWEST) and not each.beyond):
            return ""
        return f"{_short(each.rates[way])} ({each.error(way):+.1%})"

    if each.row == each.table.rows[each.table.base]:
        return (str(each.row.gpus), _short(each.row.rate), "(from here)", "", "", "")
    return (str(each.row.gpus), _short(each.row.rate), *map(said, (PREDICTED, SLOWEST, CONSTANT, LINE)))


def _short(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 1000 else f"{rate:.1f}"
