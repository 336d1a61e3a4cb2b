"""The page of a session of collectives."""

import re

import pytest

import fake_collectives as fake
from page_helpers import Page, figures, section
from parabench.collectives import ON_ANY_BACKEND
from parabench.plan.collective_case import OPS
from parabench.report.build import render
from parabench.store.record import Failure, Status


def truth(case, size):
    place = ON_ANY_BACKEND.index(case.algorithm)
    return 1e-4 * (len(ON_ANY_BACKEND) - place) + size * 1e-10 * (1 + place)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    cases = [
        fake.case(op, name, world_size=4, ranks_per_node=2 if name == "two_level" else None)
        for op in OPS
        for name in ON_ANY_BACKEND
    ]
    failure = Failure("ended by SIGKILL", 1, "SIGKILL", "Fatal Python error")
    killed = fake.launch(fake.case(algorithm="nccl:nvls"), lambda size: 0.0, status=Status.CRASHED, failure=failure)
    skipped = [(fake.case("broadcast", "nccl:tree"), "NCCL has no broadcast by nccl:tree")]
    path = tmp_path_factory.mktemp("report") / "r.db"
    return render(fake.write(path, [*fake.sweep(cases, truth, noise=0.02), killed], skipped=skipped))


def test_page_has_the_answer_first_then_figures_and_tables(page):
    text = Page(page).text
    parts = (
        "The best changes", "Warnings", "Bus bandwidth against size", "Latency and bandwidth", "Every size",
        "Failed launches", "Skipped", "Machine", "Environment", "Run it again",
    )  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    cases = len(OPS) * len(ON_ANY_BACKEND)
    assert f"{3 * cases} of {3 * cases + 1} launches succeeded ({cases + 1} configurations, 3 repetitions)." in text
    assert "All checked elements are correct." in text
    assert "all_reduce nccl:nvls, 2 ranks 0 crashed rank 1: ended by SIGKILL" in section(page, "failed")
    assert "broadcast nccl:tree, 2 ranks NCCL has no broadcast by nccl:tree" in section(page, "skipped")
    assert "all_gather native, 4 ranks 64 KiB in place" in section(page, "cases")


def test_page_draws_one_figure_for_each_operation(page):
    found = figures(page)
    assert re.findall(r"<figcaption>(.*?)</figcaption>", page) == [f"{op}, 4 ranks" for op in OPS]
    for figure in found.values():
        assert [trace["name"] for trace in figure["data"]] == list(ON_ANY_BACKEND)
        assert {len(trace["x"]) for trace in figure["data"]} == {4}
        assert len({trace["line"]["color"] for trace in figure["data"]}) == len(ON_ANY_BACKEND)
    first = found["bus-0"]["data"][0]
    seconds = truth(fake.case(algorithm="native"), 1 << 16)
    assert first["y"][0] == pytest.approx(1.5 * (1 << 16) / seconds / 1e9, rel=0.1)
    assert re.fullmatch(r"<b>native</b>, 64 KiB<br>0\.\d+ GB/s \(0\.\d+ to 0\.\d+\)", first["hovertext"][0])
    assert min(*first["error_y"]["array"], *first["error_y"]["arrayminus"]) >= 0


def test_page_names_what_differs_besides_operation_and_ranks(tmp_path):
    cases = [fake.case(dtype=dtype, world_size=4) for dtype in ("float32", "float64")]
    page = render(fake.write(tmp_path / "r.db", fake.sweep(cases, lambda case, size: 1e-3)))
    titles = [f"all_reduce, 4 ranks, dtype={dtype}" for dtype in ("float32", "float64")]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", page) == titles


@pytest.mark.parametrize(
    ("status", "wrong", "sentences"),
    [
        (Status.HUNG, 0, ["so the fastest algorithm is unknown.", "so nothing is drawn.", "No size was measured."]),
        (Status.WRONG, 3, ["12 elements are wrong."]),
    ],
)
def test_page_without_good_launch_has_sentences_and_no_figure(tmp_path, status, wrong, sentences):
    failed = fake.launch(fake.case(), lambda size: 1e-3, status=status, wrong=wrong, failure=Failure("no end"))
    page = render(fake.write(tmp_path / "r.db", [failed]))
    assert [each for each in sentences if each not in Page(page).text] == []
    assert figures(page) == {}


@pytest.mark.parametrize(
    ("protocol", "timed", "statistic"),
    [
        (fake.PROTOCOL, "isolated calls, each after a barrier", "10th percentile"),
        (fake.THROUGHPUT, "calls back to back, as nccl-tests does", "mean"),
    ],
)
def test_page_describes_the_timing(tmp_path, protocol, timed, statistic):
    launches = fake.sweep([fake.case()], lambda case, size: 1e-3, protocol=protocol)
    text = Page(render(fake.write(tmp_path / "r.db", launches, protocol=protocol))).text
    assert text.count(f"Timed: {timed}.") == 3
    assert f"the {statistic} of its calls" in text
