"""The section of links, and how it looks in a browser."""

from __future__ import annotations

import pytest

import fake_links
import fake_nodes
import fake_results as fake
from browser_helpers import AXE, FIND, WIDTHS, go_to, needs_chromium, opened, resize, too_wide, unmarked
from parabench.analysis.session import session_data
from parabench.report.build import render, write_report
from parabench.report.sections.environment import links_section
from parabench.store.results import load
from parabench.store.store import Store


def measured(path, links, of=None):
    fake.write(path, of or [fake.launch(fake.case(), 8.0)], environment=fake_nodes.environment())
    with Store.open_or_create(path) as store:
        store.add_links(1, links)
    return load(path)


def section(path, links):
    return links_section(session_data(measured(path, links)))


def test_section_has_tiers_and_links_with_the_slowest_first(tmp_path):
    one = section(tmp_path / "a.db", fake_links.rows(2, 2, lambda a, b: 0.5 if (a, b) == (3, 2) else 1.0))
    assert one.lead == "Across nodes 0.50 GB/s, in a node 4.0 GB/s: 8.0 times less."
    tiers, links = one.tables
    assert tiers.rows == [
        ("across nodes", "2", "60", "0.50", "0.50", "0.50"),
        ("in a node", "4", "20", "4.0", "2.0", "4.0"),
    ]
    assert links.rows[0] == ("rank 0", "rank 2", "across nodes", "60", "0.50")
    assert links.rows[2] == ("rank 3", "rank 2", "in a node", "20", "2.0")
    assert len(links.rows) == 6


def test_page_has_links_after_the_machine(tmp_path):
    text = render(measured(tmp_path / "a.db", fake_links.rows(2, 2)))
    assert text.index('<section id="machine">') < text.index('<section id="links">') < text.index('id="environment"')


@pytest.mark.skipif(AXE is None, reason="axe-playwright-python, which has axe-core, is not installed")
class TestInABrowser:
    pytestmark = needs_chromium

    def test_section_fits_and_can_be_read(self, browser, tmp_path):
        page = write_report(measured(tmp_path / "a.db", fake_links.rows(4, 4)), tmp_path / "page.html")
        assert AXE is not None
        with opened(browser, page) as shown:
            go_to(shown, "environment")
            assert shown.locator("#links td").first.is_visible()
            shown.evaluate(AXE.read_text())
            assert shown.evaluate(FIND, None) == []
            shown.emulate_media(color_scheme="dark")
            assert shown.evaluate(FIND, None) == []
            resize(shown, WIDTHS[0])
            assert too_wide(shown) <= 0
            assert unmarked(shown) == []
