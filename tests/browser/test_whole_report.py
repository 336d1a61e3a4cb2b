"""Every tab, filter and column of a whole page is used, and the page writes nothing to the console.

`.ci/run` gives the page of a real session in PARABENCH_REPORT.
"""

import os
from pathlib import Path

import pytest

from benchmarks import big_store
from browser_helpers import drawn, each_tab, go_to, needs_chromium, opened
from parabench.report.build import write_report
from parabench.store.results import load

pytestmark = needs_chromium

REPORT = os.environ.get("PARABENCH_REPORT")


def use_all(page):
    filters = [each.get_attribute("data-filter") for each in page.locator("#filters .filter").all()]
    for _ in each_tab(page):
        for name in filters:
            own = page.locator(f"#filters .filter[data-filter='{name}']")
            own.locator("summary").click()
            own.locator("input").first.check()
            own.locator("summary").click()
            drawn(page)
            page.get_by_role("button", name="Show all").click()
            drawn(page)
    go_to(page, "data")
    for head in page.locator("#tab-data th button").all():
        head.click()
        drawn(page)
    page.locator("#tab-data tbody button").first.click()
    page.wait_for_selector("dialog[data-drawn=yes]")


@pytest.mark.slow  # a minute of making the database and of visiting all that there is
def test_page_of_many_cases_can_be_used(browser, tmp_path):
    store = tmp_path / "results.db"
    big_store.write(out=store, cases=500, launches=2, steps=10, ranks=2, explained=4)
    with opened(browser, write_report(load(store), tmp_path / "report.html")) as page:
        use_all(page)


@pytest.mark.skipif(REPORT is None, reason="PARABENCH_REPORT does not name a page")
def test_page_of_a_real_session_can_be_used(browser):
    with opened(browser, Path(REPORT).resolve()) as page:
        use_all(page)
