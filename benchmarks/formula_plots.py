"""Plots of measured collectives over their fitted formulas, for the documentation.

    python -m benchmarks.formula_plots STORE docs/measured

STORE is a results.db that `parabench collectives` wrote. One SVG for each operation and world size goes to the folder.
The figures are the report's own; headless Chromium turns them into SVG.
"""

from __future__ import annotations

import base64
import shutil
import sys
import urllib.parse
from pathlib import Path

from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs

from parabench.analysis.collectives.bus import launch_sizes
from parabench.analysis.collectives.cost_model import fit_costs, points_of
from parabench.analysis.session import select_session
from parabench.pages.collectives_figures import fitted_times
from parabench.store import load

WIDTH, HEIGHT = 760, 420
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
DRAW = "([figure, width, height]) => Plotly.toImage(JSON.parse(figure), {format: 'svg', width, height})"


def main() -> None:
    store, folder = Path(sys.argv[1]), Path(sys.argv[2])
    results = load(store)
    fits = fit_costs(points_of(launch_sizes(results, select_session(results, None))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page()
        page.add_script_tag(content=get_plotlyjs())
        for panel in fitted_times(fits):
            figure = panel.figure
            # Readable on light and dark pages alike.
            figure.update_layout(paper_bgcolor="white", plot_bgcolor="white", title=panel.title, margin={"t": 80})
            figure.update_xaxes(gridcolor="#ddd")
            figure.update_yaxes(gridcolor="#ddd")
            image = page.evaluate(DRAW, [figure.to_json(), WIDTH, HEIGHT])
            name = panel.title.replace(", ", "-").replace(" ", "-") + ".svg"
            (folder / name).write_text(svg(image))
            print(folder / name)
        browser.close()


def svg(image: str) -> str:
    """The text of an SVG from its data address."""
    kind, _, data = image.partition(",")
    return base64.b64decode(data).decode() if kind.endswith("base64") else urllib.parse.unquote(data)


if __name__ == "__main__":
    main()
