"""The section of links in a browser: a matrix from rank to rank."""

from __future__ import annotations

import re

import pytest

import fake_links
import fake_nodes
import fake_results as fake
from browser_helpers import AXE, FIND, WIDTHS, go_to, needs_chromium, opened, resize, too_wide, unmarked
from parabench.analysis.links import link_table
from parabench.analysis.session import select_session
from parabench.report.build import render, write_report
from parabench.report.sections.environment import links_section
from parabench.report.spec import SHADES
from parabench.store.results import load
from parabench.store.store import Store


def measured(path, links, of=None):
    fake.write(path, of or [fake.launch(fake.case(), 8.0)], environment=fake_nodes.environment())
    with Store.open_or_create(path) as store:
        store.add_links(1, links)
    return load(path)


def section(path, links):
    results = measured(path, links)
    one = links_section(link_table(results, select_session(results)))
    return one


def texts(matrix):
    return [[text for text, _ in row] for row in matrix.rows]


def test_matrix_has_measured_pairs_of_ranks(tmp_path):
    one = section(tmp_path / "a.db", fake_links.rows(2, 2, lambda a, b: 0.5 if (a, b) == (3, 2) else 1.0))
    bandwidth, latency = one.matrices
    assert bandwidth.names == ("rank 0 (node 0)", "rank 1 (node 0)", "rank 2 (node 1)", "rank 3 (node 1)")
    none, across, inside = ("", None), ("0.50", 0), ("4.0", SHADES)
    assert bandwidth.rows == (
        (none, inside, across, none),
        (inside, none, none, none),
        (across, none, none, inside),
        (none, none, ("2.0", 3), none),
    )
    assert texts(latency)[0] == ["", "20", "60", ""]
    assert one.lead == "Across nodes 0.50 GB/s, in a node 4.0 GB/s: 8.0 times less."
    assert one.tables[0].rows == [
        ("across nodes", "2", "60", "0.50", "0.50", "0.50"),
        ("in a node", "4", "20", "4.0", "2.0", "4.0"),
    ]


def test_the_page_has_it_after_the_machine_with_heads_and_captions(tmp_path):
    text = render(measured(tmp_path / "a.db", fake_links.rows(2, 2)))
    assert text.index('<section id="machine">') < text.index('<section id="links">') < text.index('id="environment"')
    assert text.count("<caption>") == 2
    assert text.count('<th scope="row">rank 3 (node 1)</th>') == 2
    assert text.count('<td class="shade0">0.50</td>') == 2
    assert set(re.findall(r"shade\d", text[text.index("<section") :])) <= {f"shade{n}" for n in range(SHADES + 1)}


@pytest.mark.skipif(AXE is None, reason="axe-playwright-python, which has axe-core, is not installed")
class TestInABrowser:
    pytestmark = needs_chromium

    def test_the_matrix_fits_and_can_be_read(self, browser, tmp_path):
        page = write_report(measured(tmp_path / "a.db", fake_links.rows(4, 4)), tmp_path / "page.html")
        assert AXE is not None
        with opened(browser, page) as shown:
            go_to(shown, "environment")
            assert shown.locator("#links td.shade4").first.is_visible()
            shown.evaluate(AXE.read_text())
            assert shown.evaluate(FIND, None) == []
            shown.emulate_media(color_scheme="dark")
            assert shown.evaluate(FIND, None) == []
            resize(shown, WIDTHS[0])
            assert too_wide(shown) <= 0
            assert unmarked(shown) == []
