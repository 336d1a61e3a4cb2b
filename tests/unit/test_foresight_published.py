"""Published step rates: what predictions of them begin from, and that all of it runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.foresight import published
from benchmarks.foresight.published_facts import H100, LLAMA_8B, Strategy, Table, rows
from benchmarks.foresight.published_forecasts import CONSTANT, LINE, PREDICTED, SLOWEST, forecasts
from benchmarks.foresight.published_steps import compute_s, program, step_s
from benchmarks.foresight.published_tables import TABLES
from parabench.analysis.prediction.program import Call, Program


def calls_of(program: Program) -> list[Call]:
    """The collectives of a step, in order."""
    return [event.call for event in program.events if event.call is not None]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_row_that_predictions_begin_from_comes_out(table: Table) -> None:
    base = table.rows[table.base]
    found = {each.row: each for each in forecasts(table)}
    assert found[base].rates[PREDICTED] == pytest.approx(base.rate, rel=1e-9)
    assert list(found) == list(table.rows[table.base :])
    # Communication takes time, and more of it among more GPUs.
    predicted = [each.rates[PREDICTED] for each in found.values()]
    assert predicted == sorted(predicted, reverse=True)
    assert 0.5 < compute_s(table) / (table.per_gpu / base.rate) < 1


def test_the_two_rows_of_the_line_come_out_where_the_second_is_the_slower() -> None:
    table = next(each for each in TABLES if "MPT-7b, 6 samples" in each.name)
    second, third = forecasts(table)[1:3]
    for way in (LINE, SLOWEST):
        assert second.rates[way] == pytest.approx(10475, rel=1e-6)
    assert not second.beyond
    assert third.beyond
    # 42 fewer for each of 4 doublings: 10433 on 256.
    assert third.rates[LINE] == pytest.approx(10475 - (10643 - 10475) / 4)
    assert third.rates[CONSTANT] == 10643


def test_parameters_are_gathered_twice_and_reduced_once() -> None:
    table = TABLES[0]
    calls = calls_of(program(table, 128, 1.0))
    gathered = sum(call.bytes for call in calls if call.op == "all_gather")
    reduced = sum(call.bytes for call in calls if call.op == "reduce_scatter")
    assert gathered == 2 * (2 * LLAMA_8B.parameters - LLAMA_8B.root)
    assert reduced == 4 * LLAMA_8B.parameters
    kept = calls_of(program(replace(table, strategy=Strategy.SHARD_GRAD_OP), 128, 1.0))
    assert sum(call.bytes for call in kept if call.op == "all_gather") == 2 * LLAMA_8B.parameters
    all_reduced = calls_of(program(replace(table, strategy=Strategy.DDP), 128, 1.0))
    assert sum(call.bytes for call in all_reduced) == 4 * LLAMA_8B.parameters


def test_what_nothing_hides_is_exposed() -> None:
    # Without any work a step is its collectives, one after another.
    table = Table("", "", H100, LLAMA_8B, Strategy.FULL_SHARD, 1, rows(gpus8=1, gpus16=1))
    alone = step_s(table, 8, 0.0)
    bytes_over_the_link = 7 / 8 * sum(call.bytes for call in calls_of(program(table, 8, 0.0)))
    latencies = 7 * 3.4e-6 * len(calls_of(program(table, 8, 0.0)))
    assert alone == pytest.approx(bytes_over_the_link / 370e9 + latencies)


def test_the_command_prints_and_writes_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "published.md"
    monkeypatch.setattr(sys, "argv", ["published", "--table", str(file)])
    published.main()
    printed, written = capsys.readouterr().out, file.read_text()
    for table in TABLES:
        assert table.name in printed
        assert f"### {table.name}\n" in written
    assert "no worse than the line" in printed
