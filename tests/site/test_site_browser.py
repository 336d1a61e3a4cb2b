"""The built site in a browser, from disk: wide and narrow, light and dark, and its search. `make docs` runs this."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser_helpers import PATIENCE_MS, needs_chromium
from paths import ROOT

SITE = ROOT / "site"
# tests/browser tests the reports. The page for missing addresses has addresses of a server.
APART = {SITE / "sample/report.html", SITE / "repository/reports/sample/report.html", SITE / "404.html"}
PAGES = sorted({*SITE.rglob("*.html")} - APART)
OURS = ("file:", "data:", "blob:")
WIDE, NARROW = 1400, 400

pytestmark = needs_chromium


@contextmanager
def reader(browser: Any, width: int, scheme: str) -> Iterator[Any]:
    """A tab of this width. Network requests, errors and console messages of the page fail the test."""
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(OURS) else said.append(asked.url))
        yield page
        assert said == []


def test_no_page_is_wider_than_a_narrow_window(browser: Any) -> None:
    assert len(PAGES) > 50
    with reader(browser, NARROW, "light") as page:
        for path in PAGES:
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, path


def test_the_search_finds_an_option(browser: Any) -> None:
    with reader(browser, WIDE, "light") as page:
        page.goto((SITE / "index.html").as_uri())
        page.fill(".md-search__input", "between-sessions")
        page.locator(".md-search-result__item a[href*='reference/compare.html']").first.wait_for()


def test_the_report_of_the_run_is_one_click_away(browser: Any) -> None:
    with reader(browser, WIDE, "light") as page:
        page.goto((SITE / "tutorial/sample-report.html").as_uri())
        page.click("text=Open its report")
        page.locator("h1").first.wait_for()
        assert Path(page.url.partition("#")[0].removeprefix("file://")) == SITE / "sample/report.html"
