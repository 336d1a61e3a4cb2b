"""Pictures of the sample report: the first tab for README, and four tabs with numbers for docs/how-to/report.md.

`python -m docs.drawing.tabs docs/pictures` writes them. The guide explains the numbers of each picture below it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import FloatRect, sync_playwright

REPORT = Path(__file__).parents[2] / "reports" / "sample" / "report.html"
WIDTH = 1000


class Picture(NamedTuple):
    """A part of a tab: `height` pixels from the element `top`, with a number at each of `callouts`."""

    tab: str
    top: str
    height: int
    callouts: tuple[str, ...]


PICTURES = (
    Picture("answer", "header", 1080, ("#of-trust", "#filters", "#verdict .verdict", "#verdict details")),
    Picture("buckets", "#bucket", 1080, ("#bucket .plot", "#buckets .plot")),
    Picture("anatomy", "#anatomy", 1040, ("#anatomy .lead", "#anatomy .plot")),
    Picture("trust", "#tab-trust", 900, ("#spread .plot", "#findings h2")),
)

# Puts a numbered disc on the upper left corner of the first element that each selector finds.
_MARK = """selectors => selectors.filter((selector, i) => {
  const at = document.querySelector(selector)?.getBoundingClientRect();
  if (!at) return true;
  const disc = document.createElement("div");
  disc.textContent = i + 1;
  disc.style.cssText = `position: absolute; z-index: 99; left: ${Math.max(at.left + scrollX - 24, 2)}px;
    top: ${at.top + scrollY}px; width: 24px; height: 24px; border-radius: 50%; background: #c2410c; color: #fff;
    font: 700 14px/24px sans-serif; text-align: center`;
  document.body.append(disc);
  return false;
})"""


def shoot(folder: Path, chromium: str = "/usr/bin/chromium") -> None:
    """Write `report.png` and `report-TAB.png` of each picture. Raises LookupError if the report lacks an element."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1200})
        for picture in PICTURES:
            page.goto(REPORT.as_uri())
            page.click(f"[role=tab][data-tab={picture.tab}]")
            page.wait_for_selector("html[data-drawn=yes]")
            page.wait_for_timeout(1000)
            if picture.tab == "answer":
                page.screenshot(path=folder / "report.png")
            if missing := page.evaluate(_MARK, list(picture.callouts)):
                raise LookupError(f"the tab {picture.tab} of {REPORT.name} has no {', '.join(missing)}")
            top = page.evaluate("top => document.querySelector(top).getBoundingClientRect().top + scrollY", picture.top)
            part = FloatRect(x=0, y=max(0, top - 16), width=WIDTH, height=picture.height)
            page.screenshot(path=folder / f"report-{picture.tab}.png", full_page=True, clip=part)
        browser.close()


def main(arguments: Sequence[str]) -> None:
    """Write the pictures to the folder in `arguments`."""
    shoot(Path(arguments[0] if arguments else "docs/pictures"))


if __name__ == "__main__":
    main(sys.argv[1:])
