"""Compare predictions for more GPUs with step rates that others have published.

    python -m benchmarks.prediction.published [--table FILE]

Each table of `published.json` has rows that differ only in the number of GPUs. It is predicted from one row alone
(*predicted*), and with one more row, from which the spread of the GPUs' compute times is taken (*with the slowest of
N*). They are compared with the rate per GPU of the first row (*constant*), and with a line of the rate in log2 of the
GPUs through two rows (*line*). Prints each row and a summary; --table writes them with their sources as Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.prediction.markdown import table as markdown
from benchmarks.prediction.published_steps import Table, compute_s, step_s

DATA: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())
TABLES = tuple(
    Table.of(each, DATA["machines"][each["machine"]], DATA["models"][each["model"]]) for each in DATA["tables"]
)
PREDICTED, SLOWEST, CONSTANT, LINE = WAYS = ("predicted", "with the slowest of N", "constant", "line")
# A line with a larger error fails.
FAILS = 0.05

INTRODUCTION = """# Predictions of published step rates

`python -m benchmarks.prediction.published --table docs/measured/published.md` writes this page. Rates are samples or
tokens per second of each GPU, and errors are relative to the rate. There are four forecasts of each table:

- *predicted*: from its first row alone. The compute time is the step time of this row minus the simulated effect of
  communication. More GPUs use the same simulation with larger rings over the links below.
- *with the slowest of N*: a step also waits for the slowest of N GPUs. One more row determines how much GPUs differ.
- *constant*: the rate of the first row.
- *line*: a straight line of the rate in log2 of the GPUs through two rows.

No constant is fitted to a table. Backward computes twice as long as forward, or three times with recomputation. FSDP
gathers a layer's parameters in bfloat16 while the previous layer computes. Communication does not slow down compute.
"""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted rates of a row with `gpus`; `beyond`: no prediction uses the row."""

    table: Table
    gpus: int
    rates: dict[str, float]
    beyond: bool

    @property
    def measured(self) -> float:
        return self.table.rates[self.gpus]

    def error(self, way: str) -> float:
        return self.rates[way] / self.measured - 1


def forecasts(table: Table) -> list[Forecast]:
    """Forecast the base row and all larger ones."""
    work = compute_s(table)
    spread = _spread(table, work) if len(table.known) > 1 else None
    found = []
    for gpus in [each for each in table.rates if each >= table.base]:
        rates = {PREDICTED: table.per_gpu / step_s(table, gpus, work), CONSTANT: table.rates[table.base]}
        if spread is not None:
            rates[SLOWEST] = table.per_gpu / step_s(table, gpus, work * _late(table, gpus, spread))
            rates[LINE] = _on_the_line(table, gpus)
        found.append(Forecast(table, gpus, rates, spread is not None and gpus > table.known[-1]))
    return found


def _on_the_line(table: Table, gpus: int) -> float:
    low, high = table.known[-2:]
    slope = (table.rates[high] - table.rates[low]) / math.log2(high / low)
    return table.rates[high] + slope * math.log2(gpus / high)


def _late(table: Table, gpus: int, spread: float) -> float:
    """Return how many times as long the slowest of the GPUs computes as that of the base row, in the median."""

    def slowest(count: int) -> float:
        return 1 + spread * float(norm.ppf(0.5 ** (1 / count)))

    return slowest(gpus) / slowest(table.base)


def _spread(table: Table, work: float) -> float:
    """Return the standard deviation with which the other known row comes out; 0 if it is faster than predicted."""
    low, high = table.known[-2:]
    other = low if high == table.base else high

    def off(spread: float) -> float:
        return step_s(table, other, work * _late(table, other, spread)) - table.per_gpu / table.rates[other]

    # With fewer GPUs than the base the step gets shorter with the spread.
    sign = 1 if other is high else -1
    return 0.0 if sign * off(0.0) >= 0 else float(brentq(off, 0.0, 1.0, xtol=1e-9))


def summary(found: Sequence[Forecast]) -> Iterator[str]:
    """Yield the errors of all larger rows, of rows beyond the line's two, and of rows where a line fails."""

    def errors(rows: Sequence[Forecast], *ways: str) -> str:
        sizes = {way: np.abs([each.error(way) for each in rows]) for way in ways}
        return ", ".join(f"{way} {each.mean():.1%} (largest {each.max():.1%})" for way, each in sizes.items())

    larger = [each for each in found if each.gpus != each.table.base]
    beyond = [each for each in larger if each.beyond]
    failed = [each for each in beyond if abs(each.error(LINE)) > FAILS]
    lacking = [math.log(1 + each.error(PREDICTED)) / math.log2(each.gpus / each.table.base) for each in larger]
    tables = len({each.table.name for each in larger})
    yield f"{len(larger)} larger rows of {tables} tables, mean error: {errors(larger, PREDICTED, CONSTANT)}"
    yield f"{len(beyond)} of them beyond both rows of the line, mean error: {errors(beyond, *WAYS)}"
    yield f"{len(failed)} of these with an error of the line above 5%: {errors(failed, *WAYS)}"
    yield f"predictions are too fast by {np.median(lacking):.1%} for each doubling of the GPUs, in the median"


HEAD = ("table", "base", "GPUs", "measured", *WAYS)


def rows(found: Sequence[Forecast]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table beyond its base: errors of each way that has not seen the row."""
    base, *larger = found
    name, start = base.table.name, f"{base.measured:g} on {base.gpus}"
    for each in larger:
        shown = [PREDICTED, CONSTANT, *((SLOWEST, LINE) if each.beyond else ())]
        errors = (f"{each.error(way):+.1%}" if way in shown else "" for way in WAYS)
        yield (name, start, str(each.gpus), f"{each.measured:g}", *errors)
        name = start = ""


def sources() -> Iterator[str]:
    """Yield each source with the assumptions about its tables."""
    assumed: dict[str, dict[str, None]] = {}
    for table in TABLES:
        assumed.setdefault(table.source.partition(", ")[0], {}).update(dict.fromkeys(table.assumed))
    for source, texts in assumed.items():
        yield f"- {source}" + "".join(f"\n    - assumed: {text}" for text in texts) + "\n"


def page(found: Sequence[Sequence[Forecast]]) -> str:
    """Return the page of all tables as Markdown."""
    machines = [("node", "GPU to GPU in a node, GB/s", "node to node, GB/s", "sources")]
    for name, each in DATA["machines"].items():
        rates = (f"{each[link] / 1e9:.0f}" for link in ("within", "between"))
        machines.append((name, *rates, "; ".join(each["sources"])))
    parts = [
        INTRODUCTION,
        "## Summary\n\n" + "".join(f"- {text}\n" for text in summary([one for each in found for one in each])),
        f"## Tables\n\n{markdown((HEAD, *(row for each in found for row in rows(each))))}\n"
        f"Left out: {DATA['left_out']}.\n",
        f"## Links\n\n{markdown(machines)}\nLatencies: {DATA['latencies']}.\n",
        "## Sources and assumptions\n\n`benchmarks/prediction/published.json` has the source, model, machine, batch "
        f"and assumptions of each table.\n\n{''.join(sources())}",
    ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction.published")
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    found = [forecasts(table) for table in TABLES]
    for each in found:
        for row in rows(each):
            print("  ".join(f"{cell:>9}" for cell in row))
    print(*summary([one for each in found for one in each]), sep="\n")
    if asked.table:
        asked.table.write_text(page(found))


if __name__ == "__main__":
    main()
