"""The report in a real browser, from disk, as a reader opens it."""

import re

import pytest

import fake_collectives
import fake_results as fake
from browser_helpers import (
    UNMARKED,
    WIDTHS,
    assert_it_fits,
    choose,
    counted,
    drawn,
    go_to,
    needs_chromium,
    opened,
    points,
    tab_names,
)
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import side_of
from parabench.report.build import write_report
from parabench.report.views.comparison import gate_view, write_comparison
from parabench.store.record import Failure, Status
from several_sides import four_stores

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    """All algorithms of ours and a user's own with a long name, over enough sizes to crowd an axis."""
    folder = tmp_path_factory.mktemp("collectives")
    own = f"{'package.' * 8}module:AN_ALGORITHM_OF_MY_OWN_WITH_A_LONG_NAME"
    names = ("native", "ring", "tree", "halving_doubling", "parameter_server", "two_level(ring,tree)", own)
    cases = [
        fake_collectives.case(op, name, world_size=4, max_bytes=1 << 26, factor=2)
        for op in ("all_reduce", "all_gather", "broadcast")
        for name in names
    ]
    launches = fake_collectives.sweep(cases, lambda c, s: 1e-4 + s * 1e-9 * len(c.algorithm), noise=0.02)
    return write_report(fake_collectives.write(folder / "r.db", launches), folder / "report.html")


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """A gate with slower, faster and failed configurations."""
    folder = tmp_path_factory.mktemp("gate")
    cases = [fake.case(bucket_mib=b, world_size=n) for b in (1.0, 4.0, 25.0) for n in (2, 4)]
    oom = fake.launch(cases[0], status=Status.OOM, failure=Failure("out of memory" * 9))
    slow = fake.sweep(cases[1:], lambda c: 0.04 + 0.002 * (c.bucket_mib - 4), noise=0.001, seed=1)
    sides = fake.sweep(cases, lambda c: 0.04, noise=0.001), [oom, *slow]
    both = [side_of(fake.write(folder / f"{i}.db", side)) for i, side in enumerate(sides)]
    (folder / "gate.html").write_text(gate_view(compare(*both)).html())
    return folder / "gate.html"


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    """Names and texts as long as a user may give them, without a space to break at."""
    folder = tmp_path_factory.mktemp("long")
    strategy = f"{'package.' * 8}module:a_strategy_of_my_own_with_a_long_name"
    cases = [fake.case(strategy=strategy, bucket_mib=b, world_size=n) for b in (1.0, 2.0) for n in (2, 4)]
    results = fake.write(
        folder / "r.db",
        fake.sweep(cases, lambda c: 0.1 / c.world_size, noise=0.01),
        question="Why?" * 100,
        label="l" * 64,
        argv=["parabench", "x" * 300],
        environment=fake.ENVIRONMENT | {"cpu": "c" * 200, "env": {"E" * 80: "v" * 200}},
    )
    return write_report(results, folder / "report.html")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    return write_comparison(list(four_stores(folder).values()), folder / "four.html")


@pytest.mark.parametrize(
    "which", ["rich", "collectives", "long_names", "four", pytest.param("gate", marks=pytest.mark.slow)]
)  # plotly takes seconds of a core for each; what a gate draws others draw too
def test_every_tab_is_drawn_without_complaint_and_fits(browser, request, which):
    with opened(browser, request.getfixturevalue(which), width=WIDTHS[-1]) as page:
        assert assert_it_fits(page) > 0


# A listener after the page's own sees what the browser takes its picture of, before anything that comes later.
ON_PAPER = f"""() => addEventListener("beforeprint", () => {{ window.onPaper = {{
  hidden: [...document.querySelectorAll("[role=tabpanel]")].filter((tab) => !tab.checkVisibility()).length,
  plots: document.querySelectorAll(".plot").length,
  unmarked: ({UNMARKED})(),
  closed: document.querySelectorAll("details:not([open]):not(.filter)").length,
  ink: document.querySelector(".plot .xtick text").style.fill,
  wide: Math.max(...[...document.querySelectorAll(".plot")].map((plot) => plot.getBoundingClientRect().width)),
}}; }})"""


@pytest.mark.parametrize("which", ["rich", "collectives"])
def test_paper_has_every_tab_and_every_figure_at_once(browser, request, which):
    with opened(browser, request.getfixturevalue(which), scheme="dark") as page:
        before = page.locator("details[open]").count()
        page.evaluate(ON_PAPER)
        assert page.pdf(format="A4").startswith(b"%PDF")
        paper = page.evaluate("onPaper")
        assert paper.pop("plots") > 2
        assert paper.pop("wide") <= 690  # what an A4 sheet has room for
        assert paper == {"hidden": 0, "unmarked": [], "closed": 0, "ink": "rgb(0, 0, 0)"}
        drawn(page)
        assert page.locator("[role=tabpanel]:visible").count() == (1 if tab_names(page) else 0)
        assert page.locator("details[open]").count() == before


def test_filters_drive_figures_and_counts(browser, rich):
    with opened(browser, rich, "#tab=buckets") as page:
        assert counted(page) == "all 28 configurations"
        every = points(page, "bucket")
        choose(page, "algorithm", "ring")
        assert (counted(page), points(page, "bucket")) == ("9 of 28 configurations", every // 3)
        choose(page, "world_size", "4")
        assert (counted(page), points(page, "bucket")) == ("5 of 28 configurations", every // 6)
        choose(page, "algorithm", "tree")
        assert (counted(page), points(page, "bucket")) == ("9 of 28 configurations", every // 3)
        page.get_by_role("button", name="Show all").click()
        drawn(page)
        assert (counted(page), points(page, "bucket")) == ("all 28 configurations", every)
        assert page.get_by_role("button", name="Show all").is_hidden()


def test_the_address_keeps_what_was_chosen(browser, rich):
    with opened(browser, rich) as page:
        choose(page, "algorithm", "ring", "tree")
        choose(page, "bucket_mib", "default")
        go_to(page, "buckets")
        address = page.evaluate("location.hash")
        seen = counted(page), points(page, "bucket")
    with opened(browser, rich, address) as page:
        assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Buckets"
        assert (counted(page), points(page, "bucket")) == seen
        assert page.locator(".filter.set b").all_inner_texts() == ["ring, tree", "default"]


def test_tabs_are_moved_through_by_keys(browser, rich):
    with opened(browser, rich) as page:
        names = tab_names(page)
        page.focus("[role=tab][aria-selected=true]")
        for key, tab in (
            ("ArrowRight", names[1]), ("End", names[-1]), ("ArrowRight", names[0]), ("ArrowLeft", names[-1]),
            ("Home", names[0]),
        ):  # fmt: skip
            page.keyboard.press(key)
            drawn(page)
            assert page.evaluate("document.activeElement.dataset.tab") == tab
            assert page.locator("[role=tabpanel]:visible").get_attribute("id") == f"tab-{tab}"
        assert page.locator("[role=tab][tabindex='0']").count() == 1


def test_a_click_on_a_point_opens_its_case(browser, rich):
    with opened(browser, rich, "#tab=buckets") as page:
        case = page.evaluate("document.querySelector('#bucket .plot').data[0].customdata[0]")
        # Plotly's own layer for the mouse lies over its points.
        page.locator("#bucket .plot").first.locator(".scatterlayer .point").first.click(force=True)
        page.wait_for_selector("dialog[data-drawn=yes]")
        assert f"case={case}" in page.evaluate("location.hash")
        page.keyboard.press("Escape")
        assert page.locator("dialog[open]").count() == 0
        sync_api = pytest.importorskip("playwright.sync_api")
        sync_api.expect(page).not_to_have_url(re.compile("case="))
