"""Compare predictions for more GPUs with step rates that others have published.

    python -m benchmarks.prediction.published [--table FILE]

Each table of `published.json` has rows that differ only in the number of GPUs. The larger rows are predicted from the
base row alone, with the timeline of `parabench predict`, and compared with the rate per GPU of the base row
(*constant*). Prints each row and a summary; --table writes them with their sources as Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prediction import markdown
from parabench.analysis.collectives.rounds import BETWEEN, WITHIN
from parabench.analysis.prediction.links import Link, Links
from parabench.analysis.prediction.program import (
    BACKWARD,
    DEFAULT_CAPS,
    OPTIMIZER,
    Call,
    Event,
    Program,
    simulated,
)
from parabench.store.record import CALL, PART, WAIT_FOR, WORK

DATA: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())
# Backward computes twice as long as forward, with recomputation three times.
BACKWARD_WORK, RECOMPUTED_WORK = 2, 3
# The latencies of a message in seconds, and the GPUs of a node.
WITHIN_S, BETWEEN_S, PER_NODE = 3.4e-6, 14.0e-6, 8
DDP, FULL_SHARD = "DDP", "FSDP"

INTRODUCTION = """# Predictions of published step rates

`python -m benchmarks.prediction.published --table docs/measured/published.md` writes this page. Rates are samples or
tokens per second of each GPU, and errors are relative to the rate. There are two forecasts of each table:

- *predicted*: from its base row alone. The compute time is the step time of this row minus the simulated effect of
  communication. More GPUs use the same simulation with larger rings over the links below.
- *constant*: the rate of the base row.

No constant is fitted to a table. Backward computes twice as long as forward, or three times with recomputation. FSDP
gathers a layer's parameters in bfloat16 while the previous layer computes. Communication does not slow down compute.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """Published rows: the rate of a GPU by the number of GPUs, and the GPU's share of a step (`per_gpu`).

    `units` have parameters and their share of the work, in the order of forward; `root` parameters belong to no unit
    and are used at both ends; the head computes `head` as a unit's work is counted. Parameters are gathered in
    `gathered` bytes each, gradients reduced in `reduced`, by DDP in buckets of `caps`. Predictions come from the row of
    `base` GPUs. With `recomputed`, backward starts with another forward.
    """

    name: str
    source: str
    machine: str
    within: float
    between: float
    units: tuple[tuple[int, float], ...]
    root: int
    head: float
    strategy: str
    per_gpu: float
    rates: dict[int, float]
    base: int
    gathered: float = 2
    reduced: float = 2
    caps: tuple[int, ...] = DEFAULT_CAPS
    recomputed: bool = False

    @classmethod
    def of(cls, table: Mapping[str, Any], machine: Mapping[str, Any], model: Mapping[str, Any]) -> Table:
        """Return a table of `published.json`, with its machine and model."""
        rates = {int(gpus): rate for gpus, rate in table["rates"].items()}
        own = {"rates": rates, "base": list(rates)[table.get("base", 0)], "root": model["root"], "head": model["head"]}
        own |= {name: machine[name] for name in ("within", "between")}
        own["caps"] = tuple(table.get("caps", DEFAULT_CAPS))
        own["units"] = tuple((size, work) for count, size, work in model["units"] for _ in range(count))
        return cls(**{name: value for name, value in table.items() if name not in ("model", "assumed")} | own)


TABLES = tuple(
    Table.of(each, DATA["machines"][each["machine"]], DATA["models"][each["model"]]) for each in DATA["tables"]
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted rate of a row with `gpus`."""

    table: Table
    gpus: int
    rate: float

    @property
    def measured(self) -> float:
        return self.table.rates[self.gpus]

    @property
    def errors(self) -> tuple[float, float]:
        """Return the errors of the prediction and of the constant rate."""
        return self.rate / self.measured - 1, self.table.rates[self.table.base] / self.measured - 1


def forecasts(table: Table) -> list[Forecast]:
    """Forecast the base row and all larger ones."""
    work = compute_s(table)
    larger = [each for each in table.rates if each >= table.base]
    return [Forecast(table, gpus, table.per_gpu / step_s(table, gpus, work)) for gpus in larger]


def step_s(table: Table, gpus: int, work_s: float) -> float:
    """Return the seconds of a step of so many GPUs that compute for `work_s`."""
    program = (_ddp if table.strategy == DDP else _fsdp)(table, gpus, work_s)
    return simulated(program, _takes(table.within, table.between, gpus))[0]


def compute_s(table: Table) -> float:
    """Return the seconds of computing with which the base row comes out."""
    goal = table.per_gpu / table.rates[table.base]
    work, off = goal, goal
    while abs(off) >= 1e-12 * goal:
        off = goal - step_s(table, table.base, work)
        work += off
    return work


@cache
def _takes(within: float, between: float, gpus: int) -> Callable[[Call], tuple[float, str]]:
    """Return the seconds of a call: NCCL's collectives are rings over links of a latency and a rate."""
    links = Links({}, {WITHIN: Link(WITHIN_S, 1 / within), BETWEEN: Link(BETWEEN_S, 1 / between)})
    return cache(lambda call: (links.seconds(call.op, "ring", gpus, PER_NODE, call.bytes), BETWEEN))


def _shares(table: Table) -> tuple[list[float], list[float], float, float]:
    """Return the shares of the work: forward and backward of each unit, and of the head."""
    backward = RECOMPUTED_WORK if table.recomputed else BACKWARD_WORK
    whole = (sum(work for _, work in table.units) + table.head) * (1 + backward)
    forward = [work / whole for _, work in table.units]
    head = table.head / whole
    return forward, [share * backward for share in forward], head, head * backward


def _ddp(table: Table, gpus: int, work_s: float) -> Program:
    """Return a step of DDP. The gradients of a unit are ready after its backward, the last unit first."""
    forward, backward, head, head_backward = _shares(table)
    ready, gradients = head_backward * work_s, list[tuple[int, float]]()
    for (size, _), share in zip(reversed(table.units), reversed(backward), strict=True):
        ready += share * work_s
        gradients.append((round(size * table.reduced), ready))
    if table.root:
        gradients.append((round(table.root * table.reduced), ready))
    events = (
        (PART, "forward"), (WORK, (sum(forward) + head) * work_s), (PART, BACKWARD), (WORK, ready), (PART, OPTIMIZER),
    )  # fmt: skip
    return Program(gpus, events, tuple(gradients)).with_caps(table.caps)


def _fsdp(table: Table, gpus: int, work_s: float) -> Program:
    """Return a step of FSDP.

    It gathers a unit while the unit before it computes, in forward, and again in backward with FULL_SHARD. It reduces a
    unit's gradients after its backward. Calls of a group run one after another.
    """
    events: list[Event] = []
    sizes, last = [size for size, _ in table.units], len(table.units) - 1
    forward, backward, head, head_backward = _shares(table)

    def add(kind: str, value: Any) -> None:
        events.append((kind, value))

    def gather(parameters: int) -> int:
        """Add a call and return its number."""
        add(CALL, Call("all_gather", round(parameters * table.gathered), range(gpus)))
        return sum(kind == CALL for kind, _ in events) - 1

    def reduce(parameters: int) -> None:
        add(CALL, Call("reduce_scatter", round(parameters * table.reduced), range(gpus)))

    add(PART, "forward")
    root, newest = gather(table.root), gather(sizes[0])
    add(WAIT_FOR, root)
    for at, share in enumerate(forward):
        add(WAIT_FOR, newest)
        if at < last:
            newest = gather(sizes[at + 1])
        add(WORK, share * work_s)
    add(WORK, head * work_s)
    add(PART, BACKWARD)
    again = table.strategy == FULL_SHARD
    if again:
        newest = gather(sizes[last])
    add(WORK, head_backward * work_s)
    for at in range(last, -1, -1):
        if again:
            add(WAIT_FOR, newest)
        if again and at:
            newest = gather(sizes[at - 1])
        add(WORK, backward[at] * work_s)
        reduce(sizes[at])
    reduce(table.root)
    add(PART, OPTIMIZER)
    return Program(gpus, tuple(events))


def summary(found: Sequence[Forecast]) -> Iterator[str]:
    """Yield the mean and largest errors of all larger rows, and how they grow with the GPUs."""
    larger = [each for each in found if each.gpus != each.table.base]
    sizes = np.abs([each.errors for each in larger]).T
    ways = zip(("predicted", "constant"), sizes, strict=True)
    errors = ", ".join(f"{way} {each.mean():.1%} (largest {each.max():.1%})" for way, each in ways)
    lacking = [math.log(1 + each.errors[0]) / math.log2(each.gpus / each.table.base) for each in larger]
    tables = len({each.table.name for each in larger})
    yield f"{len(larger)} larger rows of {tables} tables, mean error: {errors}"
    yield f"predictions are too fast by {np.median(lacking):.1%} for each doubling of the GPUs, in the median"


HEAD = ("table", "base", "GPUs", "measured", "predicted", "constant")


def rows(found: Sequence[Forecast]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table beyond its base, with the errors of both forecasts."""
    base, *larger = found
    name, start = base.table.name, f"{base.measured:g} on {base.gpus}"
    for each in larger:
        yield (name, start, str(each.gpus), f"{each.measured:g}", *(f"{error:+.1%}" for error in each.errors))
        name = start = ""


def page(found: Sequence[Sequence[Forecast]]) -> str:
    """Return the page of all tables as Markdown."""
    machines = [("node", "GPU to GPU in a node, GB/s", "node to node, GB/s", "sources")]
    for name, each in DATA["machines"].items():
        rates = (f"{each[link] / 1e9:.0f}" for link in ("within", "between"))
        machines.append((name, *rates, "; ".join(each["sources"])))
    sources = dict.fromkeys(table.source.partition(", ")[0] for table in TABLES)
    parts = [
        INTRODUCTION,
        "## Summary\n\n" + "".join(f"- {text}\n" for text in summary([one for each in found for one in each])),
        f"## Tables\n\n{markdown((HEAD, *(row for each in found for row in rows(each))))}\n"
        f"Left out: {DATA['left_out']}.\n",
        f"## Links\n\n{markdown(machines)}\nLatencies: {DATA['latencies']}.\n",
        "## Sources\n\n`benchmarks/prediction/published.json` has the source, model, machine, batch and assumptions of "
        "each table.\n\n" + "".join(f"- {source}\n" for source in sources),
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
