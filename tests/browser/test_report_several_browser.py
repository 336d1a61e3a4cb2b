"""The page of several sessions in a browser."""

from __future__ import annotations

import pytest

from browser_helpers import WIDTHS, assert_it_fits, needs_chromium, opened, points
from parabench.report.views.comparison import write_comparison
from several_sides import CASES, four_stores

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    return write_comparison(list(four_stores(folder).values()), folder / "four.html")


def test_page_is_drawn_without_complaint_and_fits(browser, four):
    with opened(browser, four, width=WIDTHS[-1]) as page:
        assert_it_fits(page)
        assert points(page, "ratios") == 3 * len(CASES)
