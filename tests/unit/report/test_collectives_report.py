"""The page of a session of collectives."""

from __future__ import annotations

import html
import json
import re

import plotly.graph_objects as go
import pytest

import fake_collectives as fake
from parabench.collectives import ON_ANY_BACKEND
from parabench.plan.collective_case import OPS
from parabench.report.build import render
from parabench.store.record import Failure, Status

# Cases of the page that were measured, and how many of them are of an operation with two forms.
MEASURED, BOTH_FORMS = len(OPS) * len(ON_ANY_BACKEND), 2 * len(ON_ANY_BACKEND)


def truth(case, size):
    place = ON_ANY_BACKEND.index(case.algorithm)
    return 1e-4 * (len(ON_ANY_BACKEND) - place) + size * 1e-10 * (1 + place)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    cases = [
        fake.case(op, name, world_size=4, ranks_per_node=2 if name == "two_level" else None)
        for op in OPS
        for name in ON_ANY_BACKEND
    ]
    launches = fake.sweep(cases, truth, noise=0.02)
    launches.append(
        fake.launch(
            fake.case(algorithm="nccl:nvls"),
            lambda size: 0.0,
            status=Status.CRASHED,
            failure=Failure("ended by SIGKILL", 1, "SIGKILL", "Fatal Python error"),
        )
    )
    return fake.write(
        tmp_path_factory.mktemp("report") / "r.db",
        launches,
        skipped=[(fake.case("broadcast", "nccl:tree"), "NCCL has no broadcast by nccl:tree")],
    )


@pytest.fixture(scope="module")
def page(results):
    return render(results)


def text_of(page):
    """What a reader sees, without tags and scripts."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def figures_of(page):
    return json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])


def test_the_answer_comes_first_then_figures_constants_and_every_size(page):
    text = text_of(page)
    body = text[text.index("all_reduce, 4 ranks") :]  # after the names of the tabs
    places = [
        body.index(part)
        for part in ("all_reduce, 4 ranks", "The best changes", "Bus bandwidth against size",
                     "Measured times vs the fitted cost model", "The cost model", "Warnings",
                     "Failed launches", "Environment", "Run it again", "Every size")
    ]  # fmt: skip
    assert places == sorted(places)
    well = f"{3 * MEASURED} of {3 * MEASURED + 1} launches succeeded ({MEASURED + 1} cases, 3 blocks)"
    assert f"{well}. All checked elements are correct." in text
    assert "rank 1: ended by SIGKILL" in text
    assert "broadcast nccl:tree, 2 ranks : NCCL has no broadcast" in text


def test_collectives_figures_when_operations_have_two_forms(page):
    figures = figures_of(page)
    titles = ["all_reduce, 4 ranks", *(f"{op}, 4 ranks" for op in OPS[1:])]
    assert titles == re.findall(r"<figcaption>(.*?)</figcaption>", page)[: len(OPS)]
    bus = [figures[f"bus-{at}"] for at in range(len(OPS))]
    for op, figure in zip(OPS, bus, strict=True):
        go.Figure(figure)
        assert [trace["name"].partition(" ")[0] for trace in figure["data"]] == list(ON_ANY_BACKEND)
        # The form that is compared; the other is in the table of sizes alone.
        assert {len(trace["x"]) for trace in figure["data"]} == {4}, op
        assert len({trace["line"]["color"] for trace in figure["data"]}) == len(ON_ANY_BACKEND)
    first = bus[0]["data"][0]
    seconds = truth(fake.case(algorithm="native"), 1 << 16)
    assert first["x"] == [1 << 16, 1 << 18, 1 << 20, 1 << 22]
    assert first["y"][0] == pytest.approx(1.5 * (1 << 16) / seconds / 1e9, rel=0.1)
    assert set(first["customdata"]) <= {*data_of(page)["cases"]["case_id"]}
    assert first["hovertext"][0].startswith("<b>native</b>, 64 KiB<br>")
    assert first["hovertext"][0].endswith("<br>3 of 3 launches ok")
    assert min(*first["error_y"]["array"], *first["error_y"]["arrayminus"]) >= 0
    fits = [figures[f"fit-{at}"] for at in range(len(OPS))]
    assert sum(len(trace["x"]) for figure in fits for trace in figure["data"] if trace["mode"] == "markers") == (
        MEASURED * 3 * 4
    )
    line, points = fits[0]["data"][:2]
    go.Figure(fits[0])
    assert (line["mode"], line["x"], len(points["x"])) == ("lines", first["x"], 3 * 4)
    assert re.search(r"^<b>native</b>, 64 KiB<br>0\.\d+ ms, fitted 0\.\d+ ms$", points["hovertext"][0])


def test_collectives_page_filters_constants_by_case(page):
    cases = data_of(page)["cases"]
    ids = [case.split("|") for case in re.findall(r'<tbody data-case="(.*?)"', page)]
    assert {case for own in ids for case in own} < {*cases["case_id"]}
    assert data_of(page)["filters"] == [
        ["op", "Operation"], ["algorithm", "Algorithm"], ["world_size", "Ranks"], ["status", "Status"]
    ]  # fmt: skip
    assert data_of(page)["sizes"]["n"] == MEASURED * 4 + BOTH_FORMS * 4


def test_collectives_have_a_figure_for_each_combination(tmp_path):
    cases = [
        fake.case(algorithm="two_level", world_size=4, ranks_per_node=1),
        fake.case(algorithm="two_level", world_size=4, ranks_per_node=2),
        fake.case(dtype="float64", world_size=4),
        fake.case("broadcast", world_size=4),
    ]
    page = render(fake.write(tmp_path / "r.db", fake.sweep(cases, lambda c, s: 1e-3)))
    figures, data = figures_of(page), data_of(page)
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)[:3]
    lines = [(title, trace) for at, title in enumerate(titles) for trace in figures[f"bus-{at}"]["data"]]
    assert sorted((title, trace["name"]) for title, trace in lines) == [
        ("all_reduce, 4 ranks, float32", "two_level (1 a node)"),
        ("all_reduce, 4 ranks, float32", "two_level (2 a node)"),
        ("all_reduce, 4 ranks, float64", "native"),
        ("broadcast, 4 ranks, float32", "native"),
    ]
    dashes = {trace["name"]: trace["line"]["dash"] for _, trace in lines}
    assert dashes == {"two_level (1 a node)": "solid", "two_level (2 a node)": "dot", "native": "solid"}
    # Operations that reduce nothing do not differ from the others in how they reduce.
    assert [name for name, _ in data["filters"]] == ["op", "algorithm", "ranks_per_node", "dtype"]


def test_nothing_ended_well_is_said_everywhere(tmp_path):
    failed = fake.launch(fake.case(), lambda size: 1e-3, status=Status.HUNG, failure=Failure("no end"))
    page = render(fake.write(tmp_path / "r.db", [failed]))
    text = text_of(page)
    assert "No launch succeeded, so there is no fastest algorithm." in text
    assert text.count("No launch succeeded, so nothing is drawn.") == 2
    assert "No launch succeeded, so there is nothing to fit." in text
    assert "No size was measured." in text
    assert figures_of(page) == {}


def test_wrong_elements_are_loud_and_draw_nothing(tmp_path):
    wrong = fake.launch(fake.case(), lambda size: 1e-3, status=Status.WRONG, wrong=3, failure=Failure("wrong"))
    page = render(fake.write(tmp_path / "r.db", [wrong]))
    assert "12 elements are wrong." in text_of(page)
    assert figures_of(page) == {}


def test_the_page_says_how_calls_were_timed(page, tmp_path):
    text = text_of(page)
    assert "Timed: isolated calls, each after a barrier." in text
    assert "p50, p95 and p99 are over a launch's calls." in text
    launches = fake.sweep([fake.case()], lambda case, size: 1e-3, protocol=fake.THROUGHPUT)
    text = text_of(render(fake.write(tmp_path / "r.db", launches, protocol=fake.THROUGHPUT)))
    assert text.count("calls back to back, as nccl-tests does") >= 3
    assert "no constant below 0, to calls back to back" in text
    assert "one number per launch (mean of its calls, by its slowest rank)" in text
    assert "p50, p95 and p99 are over a launch's batches of calls." in text
