"""What reaches the figures of a real browser: their cases, units, and what the filters leave of them."""

import re

import pytest

import fake_results as fake
from browser_helpers import drawn, needs_chromium, opened, tab_names
from fake_devices import gpu_launches
from fake_results import step
from parabench.report.build import write_report
from parabench.store.record import MIB

pytestmark = needs_chromium

READ = """(section) => [...document.querySelectorAll(`#${section} figure:not([hidden])`)].map((figure) => {
  const { data, layout } = figure.querySelector(".plot");
  return JSON.parse(JSON.stringify({ title: figure.querySelector("figcaption")?.textContent || "", data, layout }));
})"""
GO = """(address) => location.hash === `#${address}` || new Promise((done) => {
  addEventListener("popstate", () => done(true), { once: true });
  location.hash = address;
})"""
EVERY = """() => [
  ...document.querySelectorAll("[role=tabpanel]:not([hidden]) figure:not([hidden]) .plot:not([data-case])"),
].map(({ data, layout }) => JSON.parse(JSON.stringify({ data, layout })))"""
# What a reader sees of a section: headings of figures, titles of tables, and the sentence where there is nothing.
SEEN = """(section) => [...document.querySelectorAll(
  `#${section} :is(figcaption, details:not(.reading) > summary, .empty)`)]
  .filter((each) => each.checkVisibility()).map((each) => each.textContent)"""


def at(page, address):
    """The page with what the address says chosen."""
    page.evaluate(GO, address)
    drawn(page)


def panels(page, section):
    return page.evaluate(READ, section)


def traces(panel):
    return {trace["name"]: trace for trace in panel["data"] if trace.get("name")}


def seen(page, section):
    return page.evaluate(SEEN, section)


@pytest.fixture(scope="module")
def anatomy(browser, tmp_path_factory):
    """A DDP of two launches with steps of 10 and 11 s, and a faster FSDP with one of 10."""
    folder = tmp_path_factory.mktemp("anatomy")
    launches = [
        step(step(fake.launch(fake.case(), 8.0, repetition=repetition)), 26, longer=1.0) for repetition in range(2)
    ]
    fsdp = step(fake.launch(fake.case(strategy="fsdp"), 5.0), name="all_gather")
    path = write_report(fake.write(folder / "r.db", [*launches, fsdp]), folder / "r.html")
    with opened(browser, path) as page:
        yield page


@pytest.fixture(scope="module")
def rich(browser, rich):
    with opened(browser, rich) as page:
        yield page


@pytest.fixture(scope="module")
def devices(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    launches = gpu_launches()
    for one in launches:
        fake.tell(one, fake.SIZES, parameter_bytes=12 * MIB, gradient_bytes=12 * MIB, optimizer_bytes=24 * MIB)
    with opened(browser, write_report(fake.write(folder / "r.db", launches), folder / "r.html")) as page:
        yield page


def test_the_filters_leave_the_figures_and_tables_of_selected_cases_and_a_sentence_where_there_are_none(anatomy):
    at(anatomy, "tab=anatomy&strategy=ddp")
    (panel,) = panels(anatomy, "anatomy")
    assert len(traces(panel)["compute"]["x"]) == 1
    assert seen(anatomy, "timeline") == [
        "ddp native, 2 ranks: 10,000 ms", "ddp native, 2 ranks: calls of this step in ms; late: last rank after the "
        "first",
    ]  # fmt: skip
    at(anatomy, "tab=buckets&strategy=fsdp")
    assert seen(anatomy, "buckets") == ["Nothing here is about a selected configuration."]
    at(anatomy, "tab=buckets&strategy=ddp")
    assert seen(anatomy, "buckets")[0] == "ddp native, 2 ranks"


@pytest.mark.parametrize("which", ["rich", "devices"])
def test_every_figure_of_cases_has_units_and_every_point_its_case(request, which):
    page = request.getfixturevalue(which)
    known = set(page.evaluate("Object.values(JSON.parse(document.getElementById('data').textContent).cases.case_id)"))
    seen = 0
    for tab in tab_names(page):
        at(page, f"tab={tab}")
        for figure in page.evaluate(EVERY):
            titles = " ".join(figure["layout"][axis]["title"].get("text") or "" for axis in ("xaxis", "yaxis"))
            assert re.search(r"\((ms|MiB|ranks|ratio|%|J|tokens/s)\)|(FLOP|GB)/s", titles), (tab, titles)
            for trace in figure["data"]:
                cases = {case for ids in trace.get("customdata") or [] for case in ids.split("|")}
                assert cases - {"", "all"} <= known, (tab, trace["name"])
                seen += len(cases)
    assert seen > 0
