"""The tables that people read name exactly the strategies that there are, and the formulas that the report draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parabench.analysis.memory import FORMULAS
from parabench.family import STRATEGIES

ROOT = Path(__file__).parents[1]


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
