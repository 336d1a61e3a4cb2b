"""The section of predictions in a real browser: its figure shows, at every width."""

from __future__ import annotations

import prediction_helpers as helpers
from browser_helpers import WIDTHS, go_to, needs_chromium, opened, resize, too_wide, unmarked
from parabench.report.build import write_report

pytestmark = needs_chromium

LEGEND = """() => [...document.querySelectorAll("#prediction .legendtext")].map((each) => each.textContent)"""


def test_the_figure_shows_a_line_for_each_strategy(browser, tmp_path):
    cases = [helpers.case(name) for name in ("ddp", "zero1")]
    results = helpers.write(
        tmp_path / "r.db", computed=cases, trained=[(each, 0.026) for each in cases], link_nodes=(1, 2)
    )
    with opened(browser, write_report(results, tmp_path / "report.html")) as page:
        go_to(page, "scaling")
        for width in reversed(WIDTHS):
            if width < WIDTHS[-1]:
                resize(page, width)
            assert page.evaluate(LEGEND) == ["ddp", "zero1"]
            assert unmarked(page) == []
            assert too_wide(page) <= 0
