"""Pages that everybody can use: axe-core finds nothing serious on any of them."""

import os

import pytest

import fake_collectives
from browser_helpers import AXE, FIND, each_tab, needs_chromium, opened
from parabench.report.build import write_report

pytestmark = [
    *needs_chromium,
    pytest.mark.skipif(
        AXE is None and not os.environ.get("CI"), reason="axe-playwright-python, which has axe-core, is not installed"
    ),
]

# What a dark page can do worse than a light one.
OF_COLOUR = ["color-contrast", "link-in-text-block"]


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    launches = fake_collectives.sweep(
        [fake_collectives.case(op, name) for op in ("all_reduce", "all_gather") for name in ("native", "ring")],
        lambda c, s: 1e-4 + s * 1e-9,
        noise=0.02,
    )
    return write_report(fake_collectives.write(folder / "collectives.db", launches), folder / "collectives.html")


# axe walks through the whole page at each look, seen or not: one look at all tabs is as much as one at each of them.
ALL_TABS = """() => {
  for (const tab of document.querySelectorAll("[role=tabpanel]")) tab.hidden = false;
}"""


def show_all_tabs(page):
    """Draws every tab, and lets all of them be seen at once, one below the other."""
    for _ in each_tab(page):
        pass
    page.evaluate(ALL_TABS)


@pytest.mark.parametrize("which", ["rich", "collectives"])
def test_no_serious_violation_on_any_tab(browser, request, which):
    assert AXE is not None, "axe-playwright-python is not installed"
    with opened(browser, request.getfixturevalue(which)) as page:
        page.evaluate(AXE.read_text(encoding="utf-8") + ";undefined")
        show_all_tabs(page)
        assert page.evaluate(FIND) == []
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(FIND, OF_COLOUR) == []
