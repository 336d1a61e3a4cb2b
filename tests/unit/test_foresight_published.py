"""Published step rates: the rows that predictions start from, and the figures of the docs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.foresight.published import CONSTANT, LINE, PREDICTED, SLOWEST, TABLES, forecasts, page
from benchmarks.foresight.published_steps import DDP, compute_s, program
from paths import DOCS


@pytest.fixture(scope="module")
def found():
    return [forecasts(table) for table in TABLES]


def test_forecasts_start_from_the_measured_row(found):
    for rows in found:
        base, table = rows[0], rows[0].table
        assert base.rates[PREDICTED] == pytest.approx(base.measured, rel=1e-9)
        # Communication takes time, and more of it among more GPUs.
        predicted = [each.rates[PREDICTED] for each in rows]
        assert predicted == sorted(predicted, reverse=True)
        assert 0.5 < compute_s(table) / (table.per_gpu / base.measured) < 1


def test_line_and_slowest_go_through_two_rows(found):
    rows = next(rows for rows in found if "MPT-7b, 6 samples" in rows[0].table.name)
    for way in (LINE, SLOWEST):
        assert rows[1].rates[way] == pytest.approx(10475, rel=1e-6)
    # 42 fewer for each of 4 doublings: 10433 on 256.
    assert rows[2].rates[LINE] == pytest.approx(10475 - (10643 - 10475) / 4)
    assert rows[2].rates[CONSTANT] == 10643


def test_fsdp_gathers_twice_and_reduces_once():
    def total(table, op):
        calls = [event.call for event in program(table, 128, 1.0).events if event.call is not None]
        return sum(call.bytes for call in calls if call.op == op)

    table = TABLES[0]
    assert total(table, "all_gather") == 2 * (2 * table.parameters - table.root)
    assert total(table, "reduce_scatter") == 4 * table.parameters
    assert total(replace(table, strategy=DDP), "all_reduce") == 4 * table.parameters


def test_page_is_what_the_benchmark_writes(found):
    assert (DOCS / "measured/published.md").read_text() == page(found)
    larger = [each for rows in found for each in rows if each.gpus != each.table.base]
    assert np.mean([abs(each.error(PREDICTED)) for each in larger]) < 0.04
