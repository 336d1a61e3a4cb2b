"""What the page's script draws of cases, read back from the figures in a real browser."""

from __future__ import annotations

import math
import re

import pytest

import fake_results as fake
from browser_helpers import drawn, needs_chromium, opened, until
from parabench.report.build import write_report

pytestmark = needs_chromium

READ = """(section) => [...document.querySelectorAll(`#${section}-panels figure`)].map((figure) => {
  const { data, layout } = figure.querySelector(".plot");
  return JSON.parse(JSON.stringify({ title: figure.querySelector("figcaption")?.textContent || "", data, layout }));
})"""
GO = """(address) => new Promise((done) => {
  if (location.hash === `#${address}`) done(true);
  addEventListener("popstate", () => done(true), { once: true });
  location.hash = address;
})"""


def figures(page, section):
    """A section's figures by title, as the browser has them."""
    return {figure["title"]: figure for figure in page.evaluate(READ, section)}


def only(page, section):
    (figure,) = page.evaluate(READ, section)
    return figure


def traces(figure):
    return {trace["name"]: trace for trace in figure["data"]}


def at(page, address):
    """The same page with what the address says chosen."""
    page.evaluate(GO, address)
    drawn(page)


def empty(page, section):
    return page.locator(f"#{section}-panels .empty").all_inner_texts()


def titles(figure):
    return [figure["layout"][axis].get("title", {}).get("text") or "" for axis in ("xaxis", "yaxis")]


@pytest.fixture(scope="module")
def rich(browser, rich):
    with opened(browser, rich) as page:
        yield page


@pytest.fixture(scope="module")
def family(browser, family):
    with opened(browser, family) as page:
        yield page


@pytest.mark.parametrize(
    ("tab", "sections"),
    [("answer", ("ranking", "front")), ("buckets", ("bucket", "heat")), ("algorithms", ("algorithms",)),
     ("scaling", ("scaling",))],
)  # fmt: skip
def test_every_figure_has_units_and_every_point_its_case(rich, tab, sections):
    at(rich, f"tab={tab}")
    for section in sections:
        drawn_here = rich.evaluate(READ, section)
        assert drawn_here, section
        for figure in drawn_here:
            assert re.search(r"\((MiB|ms|ranks|ratio)\)", " ".join(titles(figure))), titles(figure)
            points = [trace for trace in figure["data"] if trace.get("hoverinfo") != "skip"]
            lines = [line for trace in points for line in ([trace["ids"]] if "ids" in trace else trace["customdata"])]
            assert all(re.fullmatch(r"\w+-\w+-\S+", case) for line in lines for case in line), section


def test_bucket_panels_have_the_default_apart_and_mark_the_set(rich):
    at(rich, "tab=buckets")
    panels = figures(rich, "bucket")
    assert list(panels) == ["ddp, 4 ranks", "ddp, 2 ranks"]
    figure = panels["ddp, 4 ranks"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["1", "4", "25", "default"]
    numbered, default = [trace for trace in figure["data"] if trace["name"] == "native"]
    assert (len(numbered["x"]), numbered["mode"]) == (3, "lines+markers")
    assert (len(default["x"]), default["mode"]) == (1, "markers")
    assert default["x"][0] > max(numbered["x"])
    assert min(numbered["error_y"]["array"] + numbered["error_y"]["arrayminus"]) >= 0
    symbols = {trace["name"]: trace["marker"]["symbol"] for trace in reversed(figure["data"])}
    assert [symbol.endswith("-open") for symbol in symbols["ring"]] == [True, False, False]
    assert all(symbol.endswith("-open") for name in ("native", "tree") for symbol in symbols[name])
    (band,) = figure["layout"]["shapes"]
    assert (band["x0"], band["x1"]) == (pytest.approx(2 - 0.3), pytest.approx(math.log2(25) + 0.3))
    assert panels["ddp, 2 ranks"]["layout"].get("shapes", []) == []


def test_a_name_keeps_its_colour(rich):
    at(rich, "tab=buckets")
    colours = {}
    for figure in rich.evaluate(READ, "bucket"):
        for trace in figure["data"]:
            colours.setdefault(trace["name"], set()).add(trace["marker"]["color"])
    assert colours == {"native": {"#0072B2"}, "ring": {"#D55E00"}, "tree": {"#009E73"}}


def test_the_heat_map_outlines_the_set_and_says_why_it_is_not_there(rich):
    at(rich, "tab=buckets")
    figure = figures(rich, "heat")["ddp, 4 ranks (ms)"]
    (cells,) = figure["data"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["native", "ring", "tree"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["1", "4", "25", "default"]
    assert cells["type"] == "bar"
    middles = [round(base + high / 2, 9) for base, high in zip(cells["base"], cells["y"], strict=True)]
    at_place = {place: i for i, place in enumerate(zip(cells["x"], middles, strict=True))}
    assert sorted(at_place) == [(x, y) for x in range(4) for y in range(3)]
    cell = at_place[2, 1]
    assert cells["text"][cell] == "22.2"
    assert cells["ids"][cell].startswith("ddp-ring-w4-25mib")
    assert cells["hovertext"][cell].startswith("<b>ddp ring 25 MiB, 4 ranks</b>")
    # The fastest is the deepest blue; what is a quarter slower or more is the lightest.
    latencies = [float(text) for text in cells["text"]]
    depth = [sum(map(int, re.findall(r"\d+", colour))) for colour in cells["marker"]["color"]]
    deepest = min(range(len(depth)), key=depth.__getitem__)
    assert latencies[deepest] == min(latencies)
    assert cells["marker"]["color"][deepest] == "rgb(79,168,221)"
    by_latency = [shade for _, shade in sorted(zip(latencies, depth, strict=True))]
    assert by_latency == sorted(by_latency)
    shown = zip(latencies, cells["marker"]["color"], strict=True)
    assert {colour for ms, colour in shown if ms >= 1.26 * min(latencies)} <= {"rgb(244,248,251)"}
    outlined = [(round(shape["x0"] + 0.44), round(shape["y0"] + 0.42)) for shape in figure["layout"]["shapes"]]
    assert outlined == [(1, 1), (2, 1)]
    at(rich, "tab=buckets&algorithm=ring")
    assert figures(rich, "heat") == {}
    assert empty(rich, "heat") == [
        "The selected cases have no strategy and world size with two algorithms and two bucket sizes."
    ]


def test_a_click_on_a_cell_opens_its_case(rich):
    at(rich, "tab=buckets")
    plot = rich.locator("#heat-panels .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.locator(".nsewdrag").bounding_box()
    x, y = box["x"] + box["width"] * 2.5 / 4, box["y"] + box["height"] / 2
    rich.mouse.move(x - 2, y)
    rich.mouse.move(x, y)
    plot.locator(".hoverlayer .hovertext").wait_for()
    rich.mouse.click(x, y)
    until(rich, "location.hash.includes('case=')")
    assert "ddp-ring-w4-25mib" in rich.evaluate("location.hash")


def test_an_algorithm_is_told_by_its_ratio_to_native_also_where_native_is_not_selected(rich):
    at(rich, "tab=algorithms")
    figure = figures(rich, "algorithms")["ddp"]
    assert figure["layout"]["yaxis"]["ticktext"][:2] == ["2 ranks, 1 MiB", "2 ranks, 4 MiB"]
    assert figure["layout"]["yaxis"]["ticktext"][-1] == "4 ranks, default"
    drawn_here = traces(figure)
    assert list(drawn_here) == ["native", "ring", "tree"]
    assert drawn_here["native"]["x"] == [1] * 8
    assert drawn_here["ring"]["x"] == pytest.approx([0.92] * 8, rel=0.03)
    at(rich, "tab=algorithms&algorithm=ring")
    alone = traces(only(rich, "algorithms"))
    assert list(alone) == ["ring"]
    assert alone["ring"]["x"] == drawn_here["ring"]["x"]
    at(rich, "tab=algorithms&strategy=fsdp")
    assert empty(rich, "algorithms") == [
        "No selected algorithm was measured beside native at the same strategy, world size and bucket size."
    ]


def test_the_front_is_what_was_decided_among_all_cases(rich):
    at(rich, "tab=answer")
    every = traces(only(rich, "front"))
    line = every["beaten by none"]
    filled = {
        name: [x for x, symbol in zip(trace["x"], trace["marker"]["symbol"], strict=True) if "open" not in symbol]
        for name, trace in every.items()
        if name != "beaten by none"
    }
    assert sorted(line["x"]) == line["x"] == sorted(x for points in filled.values() for x in points)
    assert {name: len(points) for name, points in filled.items()} == {"ddp": 2, "fsdp": 0, "single": 1}
    at(rich, "tab=answer&strategy=fsdp")
    some = traces(only(rich, "front"))
    assert list(some) == ["beaten by none", "fsdp"]
    assert some["beaten by none"]["x"] == line["x"]


def test_the_fastest_are_drawn_and_what_is_no_answer_says_so(rich, family):
    at(rich, "tab=answer")
    figure = only(rich, "ranking")
    assert figure["title"] == "the 16 fastest of 27 cases"
    assert sum(len(trace["x"]) for trace in figure["data"]) == 16
    filled = [symbol for trace in figure["data"] for symbol in trace["marker"]["symbol"] if "open" not in symbol]
    assert len(filled) == 2
    at(family, "tab=answer&strategy=local_only")
    names = only(family, "ranking")["layout"]["yaxis"]["ticktext"]
    assert [name.replace("<br>", " ") for name in names] == [
        f"local_only, {n} ranks (headroom, no answer)" for n in (4, 2)
    ]


def test_scaling_follows_the_filters_and_keeps_its_base(rich):
    at(rich, "tab=scaling")
    efficiency = figures(rich, "scaling")["Strong scaling, global batch 8: efficiency"]
    assert list(traces(efficiency)) == ["ideal", "ddp ring 25 MiB", "fsdp native", "single"]
    at(rich, "tab=scaling&strategy=ddp&bucket_mib=4")
    per_algorithm = traces(figures(rich, "scaling")["Strong scaling, global batch 8: efficiency"])
    assert list(per_algorithm) == ["ideal", "ddp ring 4 MiB", "ddp native 4 MiB", "ddp tree 4 MiB", "single"]
    assert per_algorithm["ddp ring 4 MiB"]["x"] == [1, 2, 4]
    assert per_algorithm["ddp ring 4 MiB"]["y"][0] == 100
    at(rich, "tab=scaling&world_size=4")
    assert empty(rich, "scaling") == [
        "No selected strategy has two world sizes with the same work, algorithm and bucket size."
    ]


def test_headroom_is_dashed(family):
    at(family, "tab=scaling")
    throughput = traces(figures(family, "scaling")["Strong scaling, global batch 8: throughput"])
    assert throughput["local_only"]["line"]["dash"] == "dash"
    assert throughput["ddp"]["line"]["dash"] == "solid"


@pytest.fixture(scope="module")
def works(browser, tmp_path_factory):
    """Works that differ in the length of their sequences, each with its own way to scale."""
    seconds = {}

    def work(seq_len, **truth):
        for name, by_size in truth.items():
            for size, latency in by_size.items():
                options = {"ranks_per_node": 2} if name == "hsdp" else {}
                seconds[fake.case(strategy=name, world_size=size, seq_len=seq_len, **options)] = latency

    flat = dict.fromkeys((2, 4, 8), 0.08)
    steep = {size: 0.1 / size for size in (2, 4, 8)}
    work(64, single={1: 0.08}, ddp=flat | steep, zero1={2: 0.04, 8: 0.01}, hsdp={4: 0.02})
    work(32, single={1: 0.08}, ddp=flat)
    work(16, single={1: 0.1}, ddp=steep)
    work(8, ddp={2: 0.1, 4: 0.05}, local_only={2: 0.05, 4: 0.025})
    seconds[fake.case(seq_len=4, strategy="single", world_size=1)] = 0.04
    seconds[fake.case(seq_len=4, world_size=2)] = 0.025
    seconds[fake.case(seq_len=4, world_size=2, global_batch=16)] = 0.05
    for size in (2, 4):
        seconds[fake.case(model="mlp", data="synthetic", seq_len=1, world_size=size)] = 0.08 / size
    folder = tmp_path_factory.mktemp("works")
    results = fake.write(folder / "r.db", fake.sweep(seconds, seconds.__getitem__))
    with opened(browser, write_report(results, folder / "report.html"), "#tab=scaling") as page:
        page.locator("#scaling-panels button").click()
        drawn(page)
        yield page


def strong(page, seq_len, what, model="gpt-nano, text"):
    title = f"Strong scaling, global batch 8, {model}, seq len {seq_len}: {what}"
    return figures(page, "scaling")[title]


def test_a_line_crosses_no_world_size_that_was_not_measured(works):
    """hsdp has 4 ranks alone, so its point stands alone; zero1 has 2 and 8 where others have 4."""
    for what in ("throughput", "efficiency"):
        lines = traces(strong(works, 64, what))
        points = {
            strategy: [x for x, y in zip(lines[strategy]["x"], lines[strategy]["y"], strict=True) if y is not None]
            for strategy in ("ddp", "zero1", "hsdp")
        }
        assert points == {"ddp": [1, 2, 4, 8], "zero1": [1, 2, 8], "hsdp": [1, 4]}
        assert lines["zero1"]["x"] == [1, 2, 4, 8]
        assert lines["hsdp"]["x"] == [1, 2, 4]
        assert lines["single"]["x"] == [1]
        assert not any(line.get("connectgaps") for line in lines.values())


def test_the_ideal_does_not_press_the_curves_down(works):
    """Where 8 ranks are no faster than one, the ideal is eight times as high; the axis ends far below."""
    flat, steep = strong(works, 32, "throughput"), strong(works, 16, "throughput")
    rate = 8 * 32 / 0.08
    assert traces(flat)["ideal"]["y"][-1] == pytest.approx(8 * rate)
    assert flat["layout"]["yaxis"]["range"] == pytest.approx([0, 1.05 * 1.5 * rate])
    assert steep["layout"]["yaxis"]["range"] == pytest.approx([0, 1.05 * 8 * 8 * 16 / 0.1])


def test_the_ideal_without_one_device_is_the_best_base_that_is_an_answer(works):
    ideal = traces(strong(works, 8, "throughput"))["ideal"]
    assert ideal["y"] == pytest.approx([8 * 8 / 0.1, 8 * 8 / 0.05])


def test_strong_and_weak_scaling_have_their_own_panels(works):
    drawn_here = figures(works, "scaling")
    weak = "Weak scaling, 8 samples a rank, gpt-nano, text, seq len 4"
    for title in (weak, "Strong scaling, global batch 8, gpt-nano, text, seq len 4"):
        assert f"{title}: throughput" in drawn_here
        assert traces(drawn_here[f"{title}: efficiency"])["ddp native"]["y"] == pytest.approx([100, 80])


def test_a_model_without_sequences_is_never_said_to_take_tokens(works):
    figure = strong(works, 1, "throughput", "mlp, synthetic")
    assert titles(figure)[1] == "throughput (samples/s)"
    assert "samples/s" in traces(figure)["ddp native"]["text"][0]
