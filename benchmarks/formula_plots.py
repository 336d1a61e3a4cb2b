"""Plots of measured collectives over their fitted formulas, for the documentation.

    python -m benchmarks.formula_plots STORE docs/measured

STORE is a results.db that `parabench collectives` wrote. One SVG for each operation and world size goes to the folder.
The figures are the report's own; headless Chromium turns them into SVG.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
import urllib.parse
from pathlib import Path

from playwright.sync_api import sync_playwright

from parabench.report.build import write_report
from parabench.store.results import load

WIDTH, HEIGHT = 760, 420
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
# Readable on light and dark pages alike.
DRAW = """(plot, [title, width, height]) => {
  const axis = (name) => ({ ...plot.layout[name], gridcolor: "#ddd", linecolor: "#ddd", tickcolor: "#ddd" });
  const layout = {
    ...plot.layout, xaxis: axis("xaxis"), yaxis: axis("yaxis"), paper_bgcolor: "white", plot_bgcolor: "white",
    title: { text: title }, margin: { t: 80 }, width, height,
  };
  return Plotly.toImage({ data: plot.data, layout }, { format: "svg", width, height });
}"""


def main() -> None:
    store, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(color_scheme="light")
        report = write_report(load(store), Path(scratch) / "report.html")
        page.goto(f"{report.as_uri()}#tab=algorithms")
        page.wait_for_selector("html[data-drawn=yes]", state="attached")
        for figure in page.locator("#fit figure").all():
            title = figure.locator("figcaption").inner_text()
            image = figure.locator(".plot").evaluate(DRAW, [title, WIDTH, HEIGHT])
            name = title.replace(", ", "-").replace(" ", "-") + ".svg"
            (folder / name).write_text(svg(image))
            print(folder / name)
        browser.close()


def svg(image: str) -> str:
    """Return the text of an SVG from its data URL."""
    kind, _, data = image.partition(",")
    return base64.b64decode(data).decode() if kind.endswith("base64") else urllib.parse.unquote(data)


if __name__ == "__main__":
    main()
