"""Hostile texts in every field of a store: nothing runs, nothing is asked for, nothing leaves its place."""

from __future__ import annotations

import sqlite3

import pytest

import hostile_helpers as hostile
from browser_helpers import each_tab, needs_chromium, opened, pages, resize, too_wide, unmarked
from parabench.analysis.compare import across
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import side_of
from parabench.analysis.history.history import history
from parabench.report.build import write_report
from parabench.report.sections import history as history_report
from parabench.report.views import comparison
from parabench.report.views import gate as compare_report
from parabench.store.results import load
from tests.faults.naughty import TEXTS

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two stores of trainings, each hostile throughout."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = [hostile.trainings(folder / f"{name}.db", name) for name in ("one", "two")]
    for path in paths:
        hostile.poison(path)
    return [load(path) for path in paths]


@pytest.fixture(scope="module")
def training(stores, tmp_path_factory):
    return write_report(stores[0], tmp_path_factory.mktemp("page") / "training.html")


@pytest.fixture(scope="module")
def naughty(tmp_path_factory):
    """A report of a store that has every text of the fuzzer's list somewhere, and many places have all of them."""
    folder = tmp_path_factory.mktemp("naughty")
    path = hostile.trainings(folder / "r.db")
    hostile.poison(path, TEXTS)
    return write_report(load(path), folder / "page.html")


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collectives")
    path = hostile.collectives(folder / "r.db")
    hostile.poison(path)
    return write_report(load(path), folder / "page.html")


@pytest.fixture(scope="module")
def gate(stores, tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "gate.html"
    path.write_text(compare_report.render(compare(*map(side_of, stores))))
    return path


@pytest.fixture(scope="module")
def machines(stores, tmp_path_factory):
    path = tmp_path_factory.mktemp("machines") / "machines.html"
    path.write_text(
        comparison.render(
            across.machines(*(side_of(store, role=role) for role, store in zip("ab", stores, strict=True)))
        )
    )
    return path


@pytest.fixture(scope="module")
def over_time(stores, tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "history.html"
    path.write_text(history_report.render(history(stores)))
    return path


@pytest.mark.parametrize("which", pages(["training", "collectives"], slow=["over_time", "gate", "machines"]))
def test_nothing_runs_and_everything_is_text(browser, request, which):
    with opened(browser, request.getfixturevalue(which), width=360) as page:
        for tab in each_tab(page):
            assert too_wide(page) <= 0, tab
            assert unmarked(page) == [], tab
            page.evaluate(hostile.HOVER)
            assert page.evaluate(hostile.GROWN) == [], tab
        resize(page, 1440)
        assert too_wide(page) <= 0
        assert list(hostile.missing(page.evaluate(hostile.TEXT))) == []
        assert page.evaluate("typeof hacked") == "undefined"


def test_every_text_column_of_the_schema_is_hostile(stores):
    with sqlite3.connect(stores[0].path) as db:
        for table, column in hostile.text_columns(db):
            texts = [text for (text,) in db.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")]
            assert any(hostile.CALL in text or "example.invalid" in text for text in texts), (table, column)
