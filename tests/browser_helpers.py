"""A real browser that opens pages from disk, as a reader does, and notes whatever they say or ask for."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
WIDTHS = (360, 768, 1440)

needs_chromium = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
]
# What shows in a figure, of any kind that we draw.
MARKS = ".point, .points path, .js-line, .scatterlayer path, .shapelayer path, .slice"
UNMARKED = f"""() => [...document.querySelectorAll(".plot")].filter((plot) => plot.checkVisibility())
  .filter((plot) => !plot.querySelector("{MARKS}")).map((plot) => plot.id || plot.ariaLabel)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for the tests of a module: two of them at once are not possible."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@contextmanager
def opened(
    browser: Any, path: Path, address: str = "", *, width: int = 1440, scheme: str = "light", **more: Any
) -> Iterator[Any]:
    """The page of the file, drawn. What it says on the console, asks of anybody or complains of fails the test."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: said.append(request.url) if asks(request.url, path) else None)
    page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("popup", lambda popup: said.append(f"popup: {popup.url}"))
    try:
        page.goto(path.as_uri() + address)
        page.evaluate("document.readyState")
        assert said == []  # a script that ended early draws nothing, and there is nothing to wait for
        drawn(page)
        yield page
        assert said == []
    finally:
        page.close()


def asks(url: str, path: Path) -> bool:
    """Whether a request is for anything but the page itself and what it holds."""
    return not url.startswith(("data:", "blob:")) and url.partition("#")[0] != path.as_uri()


def drawn(page: Any) -> None:
    """Waits until everything that is seen is drawn."""
    page.wait_for_selector("html[data-drawn=yes]", state="attached")


def resize(page: Any, width: int) -> None:
    """Gives the window another width, and waits until the figures have followed."""
    page.evaluate("document.documentElement.dataset.drawn = 'no'")
    page.set_viewport_size({"width": width, "height": 900})
    drawn(page)


def tab_names(page: Any) -> list[str]:
    return page.eval_on_selector_all("[role=tab]", "tabs => tabs.map(tab => tab.dataset.tab)")


def go_to(page: Any, tab: str) -> None:
    page.click(f"[role=tab][data-tab={tab}]")
    drawn(page)


def each_tab(page: Any) -> Iterator[str]:
    """Opens one tab after the other; a page without tabs is one."""
    for name in tab_names(page):
        go_to(page, name)
        yield name
    if not tab_names(page):
        yield ""


def until(page: Any, condition: str) -> None:
    """Waits until the expression is true in the page, 30 s at most. Playwright's own `wait_for_function` evaluates text
    within the page at every look but the first, which the page's policy forbids."""
    page.evaluate(
        f"""() => new Promise((done, fail) => {{
          const end = performance.now() + 30000;
          const look = () => {{
            if ({condition}) done();
            else if (performance.now() > end) fail(new Error("not within 30 s"));
            else setTimeout(look, 10);
          }};
          look();
        }})"""
    )


def unmarked(page: Any) -> list[str]:
    """Figures that are seen and show nothing."""
    return page.evaluate(UNMARKED)


def too_wide(page: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def sticking_out(page: Any) -> list[str]:
    """Figures that are seen and wider than their place."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".plot .main-svg")].filter((svg) => svg.checkVisibility())
          .filter((svg) => svg.getBoundingClientRect().width > svg.closest(".plot").clientWidth + 1)
          .map((svg) => svg.closest(".plot").ariaLabel)"""
    )


def assert_it_fits(page: Any) -> int:
    """Every tab at every width, light and dark, of a page opened at the widest: nothing is wider than its place, no
    figure is empty. Returns how many figures were seen."""
    plots = 0
    # From wide to narrow: what was drawn for a wide window, in a tab that was then closed, must fit a narrow one.
    for width, scheme in zip(reversed(WIDTHS), ("light", "dark", "light"), strict=True):
        if width < WIDTHS[-1]:
            resize(page, width)
        page.emulate_media(color_scheme=scheme)
        for tab in each_tab(page):
            assert too_wide(page) <= 0, (width, tab)
            assert unmarked(page) == [], (width, tab)
            assert sticking_out(page) == [], (width, tab)
            plots += page.locator(".plot:visible").count()
    return plots


def choose(page: Any, name: str, *values: str) -> None:
    """Ticks values of a filter of the bar, and closes its list."""
    summary = page.locator(f".filter[data-filter={name}] summary")
    summary.click()
    for value in values:
        page.locator(f'.filter[data-filter={name}] input[value="{value}"]').click()
    summary.click()
    drawn(page)


def counted(page: Any) -> str:
    """How many cases the bar says are selected."""
    return page.locator("#filters output").inner_text()


def points(page: Any, section: str) -> int:
    """How many points the figures of a section hold."""
    return page.evaluate(
        """(section) => [...document.querySelectorAll(`#${section} .plot`)].filter((plot) => plot.checkVisibility())
          .flatMap((plot) => plot.data).reduce((sum, trace) => sum + trace.x.length, 0)""",
        section,
    )


_FOUND = importlib.util.find_spec("axe_playwright_python")


AXE = Path(_FOUND.origin).with_name("axe.min.js") if _FOUND and _FOUND.origin else None


# Of a figure its place is looked at; within there is one image with a name of its own.
FIND = """async (only) => {
  const found = await axe.run({ exclude: [".plot svg"] }, {
    resultTypes: ["violations"], ...(only ? { runOnly: { type: "rule", values: only } } : {}),
  });
  return found.violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 160)).join(" | ")}`);
}"""
