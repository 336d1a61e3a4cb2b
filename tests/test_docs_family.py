"""The tables that people read name exactly the strategies that there are, and the formulas that the report draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parabench.machine.machine import Machine
from parabench.plan.case import DEFAULTS
from parabench.plan.defaults import defaults_on
from parabench.plan.suite import AXES, BATCH_PER_RANK, parse_axis
from parabench.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]
FORMULAS = {name: entry.memory for name, entry in STRATEGIES.items() if entry.memory}


def rows(path):
    """{strategy: its cells} of the table whose head begins with `strategy`."""
    lines = iter((ROOT / path).read_text().splitlines())
    next(line for line in lines if re.match(r"\| strategy \|", line))
    next(lines)
    table = {}
    for line in lines:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        table[name.strip("`")] = cells
    return table


@pytest.mark.parametrize("path", ["README.md", "docs/strategies.md"])
def test_the_table_lists_the_family(path):
    table = rows(path)
    assert list(table) == list(STRATEGIES)
    assert all(all(cells) for cells in table.values())


def test_the_memory_formulas_are_those_of_the_report():
    said = {name: cells[-1] for name, cells in rows("docs/strategies.md").items()}
    apart = ("pp", "layer_split", "dp", "tp_fsdp")  # said in words, or with d for n/t
    assert {n: said[n] for n in FORMULAS if n not in apart} == {
        n: f.text for n, f in FORMULAS.items() if n not in apart
    }
    assert {name for name, formula in said.items() if formula == "not ours to say"} == {*STRATEGIES} - {*FORMULAS}


def test_the_page_of_axes_names_every_axis_and_its_default():
    defaults = {}
    for line in (ROOT / "docs/axes.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            defaults[cells[0].strip("`")] = cells[1]
    assert set(defaults) == set(AXES), f"docs/axes.md: {', '.join({*AXES} ^ {*defaults})}"
    for name, both in defaults.items():
        said, _, on_cuda = both.partition("; on CUDA ")
        cuda = defaults_on("cuda", Machine(cores=2)).get(name)
        if name == "global_batch":
            assert on_cuda == "by the devices"
        else:
            assert on_cuda.strip("`") == ("" if cuda is None else str(cuda))
        if name == BATCH_PER_RANK:
            assert said == ""
        elif said.startswith("`"):  # a text, or the name that None has on the command line
            assert parse_axis(name, said.split("`")[1]) == (DEFAULTS[name],)
        else:
            assert parse_axis(name, said) == (DEFAULTS[name],)
