"""The page of several sessions in a browser."""

from __future__ import annotations

import pytest

from browser_helpers import WIDTHS, assert_it_fits, choose, counted, go_to, needs_chromium, opened, points, until
from parabench.report.views.comparison import write_comparison
from several_sides import CASES, four_stores

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    return write_comparison(list(four_stores(folder).values()), folder / "four.html")


def test_every_tab_is_drawn_without_complaint_and_fits(browser, four):
    with opened(browser, four, width=WIDTHS[-1]) as page:
        assert_it_fits(page)


def test_filters_drive_figures_table_and_address(browser, four):
    with opened(browser, four) as page:
        assert points(page, "ratios") == 3 * (len(CASES) + 1)  # and the geometric mean
        mean_of = "document.querySelector('#ratios .plot').data.map(({ name, marker }) => [name, marker.symbol.at(-1)])"
        means = {name: symbol.endswith("-open") for name, symbol in page.evaluate(mean_of)}
        assert means == {"new": False, "alike": True, "other": False}  # filled where the interval tells it from 1
        choose(page, "bucket_mib", "1")
        assert counted(page) == "2 of 6 configurations"
        assert points(page, "ratios") == 3 * 2
        go_to(page, "data")
        assert page.locator("#cases tbody tr").count() == 2
        address = page.evaluate("location.hash")
    with opened(browser, four, address) as page:
        assert counted(page) == "2 of 6 configurations"
        assert page.locator("#cases tbody tr").count() == 2


def test_a_click_opens_what_every_side_knows_of_the_case(browser, four):
    with opened(browser, four, "#tab=data") as page:
        page.locator("#cases button.name").first.click()
        label = page.locator("#cases button.name").first.text_content()
        assert page.locator("#detail-title").text_content() == label
        rows = page.locator("dialog .scroll").first.locator("tbody tr")
        names = [name.strip() for name in rows.locator("td .name").all_text_contents()]
        assert names == ["old", "new", "alike", "other"]
        head = page.locator("dialog .scroll").first.locator("th").all_text_contents()
        assert rows.nth(0).locator("td").nth(head.index("Times")).text_content() == "1"
        assert rows.nth(1).locator("td").nth(head.index("Times")).text_content().startswith("0.8")
        assert "Per joule, times" not in head  # unknown on every side
        page.keyboard.press("Escape")
        until(page, "!location.hash.includes('case=')")
