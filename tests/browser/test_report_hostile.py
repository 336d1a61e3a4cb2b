"""Hostile texts in every field of a store: nothing runs, nothing is asked for, nothing leaves its place."""

import pytest

import hostile_helpers as hostile
from browser_helpers import each_tab, needs_chromium, opened, resize, too_wide, unmarked
from parabench.report.build import write_report
from parabench.store.results import load

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = hostile.trainings(tmp_path_factory.mktemp("hostile") / "one.db")
    hostile.poison(path)
    return path


def test_hostile_texts_stay_text(browser, store):
    with opened(browser, write_report(load(store), store.with_name("page.html")), width=360) as page:
        for tab in each_tab(page):
            assert too_wide(page) <= 0, tab
            assert unmarked(page) == [], tab
            page.evaluate(hostile.HOVER)
            assert page.evaluate(hostile.GROWN) == [], tab
        resize(page, 1440)
        assert too_wide(page) <= 0
        assert list(hostile.missing(page.evaluate(hostile.TEXT))) == []
        assert page.evaluate("typeof hacked") == "undefined"
