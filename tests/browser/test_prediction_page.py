"""The section of predictions in a real browser: its figure shows, at every width."""

from __future__ import annotations

import pytest

import prediction_helpers as helpers
from browser_helpers import WIDTHS, go_to, needs_chromium, opened, too_wide, unmarked
from parabench.report.build import write_report

pytestmark = needs_chromium

LEGEND = """() => [...document.querySelectorAll("#prediction .legendtext")].map((each) => each.textContent)"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prediction")
    cases = [helpers.case(name) for name in ("ddp", "zero1")]
    results = helpers.write(
        folder / "r.db", computed=cases, trained=[(each, 0.026) for each in cases], link_nodes=(1, 2)
    )
    return write_report(results, folder / "report.html")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_figure_shows_a_line_for_each_strategy(browser, page_file, width):
    with opened(browser, page_file, width=width) as page:
        go_to(page, "scaling")
        assert page.evaluate(LEGEND) == ["ddp", "zero1"]
        assert unmarked(page) == []
        assert too_wide(page) <= 0
