"""The section of measured links."""

from __future__ import annotations

import fake_links
import fake_nodes
import fake_results as fake
from parabench.analysis.session import session_data
from parabench.report.build import render
from parabench.report.sections.environment import links_section
from parabench.store.results import load
from parabench.store.store import Store


def measured(path, links):
    fake.write(path, [fake.launch(fake.case(), 8.0)], environment=fake_nodes.environment())
    with Store.open_or_create(path) as store:
        store.add_links(1, links)
    return load(path)


def test_section_has_tiers_and_links_with_the_slowest_first(tmp_path):
    rows = fake_links.rows(2, 2, lambda a, b: 0.5 if (a, b) == (3, 2) else 1.0)
    one = links_section(session_data(measured(tmp_path / "a.db", rows)))
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
