"""Bars of cases, and what of ready-made figures the filters leave, read back from a real browser."""

from __future__ import annotations

import pytest

import fake_results as fake
from browser_helpers import drawn, needs_chromium, opened
from fake_devices import gpu_launches
from fake_results import step
from parabench.report.build import write_report
from parabench.store.record import MIB

pytestmark = needs_chromium

READ = """(section) => [...document.querySelectorAll(`#${section}-panels figure`)].map((figure) => {
  const { data, layout } = figure.querySelector(".plot");
  return JSON.parse(JSON.stringify({ title: figure.querySelector("figcaption")?.textContent || "", data, layout }));
})"""
GO = """(address) => location.hash === `#${address}` || new Promise((done) => {
  addEventListener("popstate", () => done(true), { once: true });
  location.hash = address;
})"""
# What a reader sees of a section: headings of figures, titles of tables, and the sentence where there is nothing.
SEEN = """(section) => [...document.querySelectorAll(`#${section} :is(figcaption, summary, .empty)`)]
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
    launches = [step(step(fake.launch(fake.case(), 8.0, block=block)), 26, longer=1.0) for block in range(2)]
    fsdp = step(fake.launch(fake.case(strategy="fsdp"), 5.0), name="all_gather")
    path = write_report(fake.write(folder / "r.db", [*launches, fsdp]), folder / "r.html")
    with opened(browser, path) as page:
        yield page


@pytest.fixture(scope="module")
def family(browser, family):
    with opened(browser, family) as page:
        yield page


@pytest.fixture(scope="module")
def devices(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    launches = gpu_launches()
    for one in launches:
        fake.tell(one, fake.SIZES, parameter_bytes=12 * MIB, gradient_bytes=12 * MIB, optimizer_bytes=24 * MIB)
    with opened(browser, write_report(fake.write(folder / "r.db", launches), folder / "r.html")) as page:
        yield page


def test_bars_of_an_instrumented_step_lie_one_after_the_other_and_what_is_hidden_inside_compute(anatomy):
    at(anatomy, "tab=anatomy")
    (panel,) = panels(anatomy, "anatomy")
    bars = traces(panel)
    for name, begin, length in (
        ("data", 0, 1000), ("compute", 1000, 7000), ("exposed communication", 8000, 1500), ("idle", 9500, 500),
        ("hidden, inside compute", 5000, 3000),
    ):  # fmt: skip
        assert (bars[name]["base"][0], bars[name]["x"][0]) == (begin, length), name
    assert (bars["compute"]["x"][1], bars["exposed communication"]["base"][1]) == (7500, 8500)
    assert len({bar["marker"]["color"] for bar in bars.values()}) == 4
    assert panel["data"][-1]["text"] == [" 15 %", " 14 %"]
    assert bars["data"]["hovertext"][0].startswith(
        "data: 1,000 ms, 10 % of the step<br><b>fsdp native, 2 ranks</b><br>5,000 ms a step"
    )


def test_parts_of_the_timed_steps_are_stacked_and_say_their_share(anatomy):
    at(anatomy, "tab=anatomy")
    (panel,) = panels(anatomy, "parts")
    bars = traces(panel)
    assert {name: bar["x"][0] for name, bar in bars.items()} == pytest.approx(
        {"data": 250, "forward": 1500, "backward": 2750, "optimizer": 500}
    )
    assert panel["layout"]["barmode"] == "stack"
    assert bars["backward"]["hovertext"][0].startswith("backward: 2,750 ms, 55 % of its parts")


def test_the_filters_leave_the_figures_and_tables_of_selected_cases_and_a_sentence_where_there_are_none(anatomy):
    at(anatomy, "tab=anatomy&strategy=ddp")
    (panel,) = panels(anatomy, "anatomy")
    assert len(traces(panel)["compute"]["x"]) == 1
    assert seen(anatomy, "timeline") == [
        "ddp native, 2 ranks: 10,000 ms", "ddp native, 2 ranks: the calls of this step, in ms; late is the last rank "
        "after the first",
    ]  # fmt: skip
    at(anatomy, "tab=buckets&strategy=fsdp")
    assert seen(anatomy, "buckets") == ["No case that is drawn or listed here is among the selected."]
    at(anatomy, "tab=buckets&strategy=ddp")
    assert seen(anatomy, "buckets")[0] == "ddp native, 2 ranks"


def test_a_figure_of_several_cases_stays_while_one_of_them_is_selected(anatomy):
    at(anatomy, "tab=algorithms&strategy=ddp")
    assert seen(anatomy, "bandwidth")[:1] == ["all_reduce, 2 ranks"]
    at(anatomy, "tab=algorithms&strategy=fsdp")
    assert seen(anatomy, "bandwidth")[:1] == ["all_gather, 2 ranks"]
    at(anatomy, "tab=algorithms")
    assert seen(anatomy, "bandwidth")[:2] == ["all_reduce, 2 ranks", "all_gather, 2 ranks"]


def test_many_cases_are_cut_to_the_fastest_and_the_heading_says_of_how_many(family):
    at(family, "tab=memory")
    (panel,) = panels(family, "memory")
    assert panel["title"] == "the 16 fastest of 29 cases"
    assert {len(trace["x"]) for trace in panel["data"]} == {16}
    at(family, "tab=memory&world_size=1")
    (panel,) = panels(family, "memory")
    assert panel["title"] == ""
    # One device: a resident set of 100 MiB, and by theory four times 12 MiB of state.
    assert [trace["x"] for trace in panel["data"]] == [[100], [48]]
    assert traces(panel)["training state, theory"]["hovertext"][0].startswith(
        "training state by theory: 48.0 MiB<br>measured: 48.0 MiB<br><b>single, 1 rank</b>"
    )


def test_the_training_state_is_drawn_against_ranks_and_of_cases_that_hold_the_same_once(family):
    at(family, "tab=memory&strategy=ddp&strategy=zero1")
    against, two, four = panels(family, "state")
    lines = traces(against)
    assert (lines["zero1"]["x"], lines["zero1"]["y"]) == ([2, 4], [24, 12])
    assert lines["zero1, theory"]["y"] == [36, 30]
    assert [panel["title"] for panel in (two, four)] == ["2 ranks", "4 ranks"]
    # DDP with other options holds what DDP holds.
    assert [len(panel["data"][0]["x"]) for panel in (two, four)] == [2, 2]
    assert [traces(four)[name]["x"] for name in ("parameters", "gradients", "optimizer state")] == [
        [3, 12], [3, 12], [6, 24],
    ]  # fmt: skip
    assert traces(four)["theory"]["x"] == [30, 48]
    at(family, "tab=memory&strategy=zero1&world_size=4")
    assert [panel["title"] for panel in panels(family, "state")] == ["4 ranks"]


def test_energy_and_what_devices_did_follow_the_filters(devices):
    at(devices, "tab=energy&bucket_mib=25")
    (panel,) = panels(devices, "energy")
    assert panel["data"][0]["x"] == [100]
    assert panel["data"][0]["hovertext"][0].startswith("100 J a step, 195 mJ a token")
    assert [title for title in seen(devices, "time-devices") if " · " in title] == [
        f"{name} · ddp native 25 MiB, 2 ranks" for name in ("Power", "SM clock", "Temperature")
    ]
    at(devices, "tab=memory&bucket_mib=1")
    assert seen(devices, "time-memory")[:1] == ["ddp native 1 MiB, 2 ranks"]
    (panel,) = panels(devices, "memory")
    assert list(traces(panel)) == ["torch tensors", "device (NVML)", "training state, theory"]


@pytest.mark.parametrize("tab", ["anatomy", "memory", "energy"])
@pytest.mark.parametrize("which", ["anatomy", "family", "devices"])
def test_every_bar_has_its_case_and_every_axis_its_unit(request, which, tab):
    page = request.getfixturevalue(which)
    at(page, f"tab={tab}")
    found = [
        panel
        for section in ("parts", "anatomy", "usage", "memory", "state", "energy")
        for panel in panels(page, section)
    ]
    known = set(page.evaluate("Object.values(JSON.parse(document.getElementById('data').textContent).cases.case_id)"))
    for panel in found:
        title = panel["layout"]["xaxis"]["title"]["text"]
        assert any(unit in title for unit in ("(ms)", "(MiB)", "FLOP/s", "(%)", "(J)", "(ranks)")), title
        for trace in panel["data"]:
            if trace["type"] == "bar":
                assert set(trace["ids"]) <= known
                assert len(trace["ids"]) == len(trace["x"])
