"""The report in a real browser, from disk, as a reader opens it."""

from __future__ import annotations

import itertools
import shutil

import fake_collectives
import fake_results as fake
import pytest
from test_report_anatomy import step

from parabench.analysis.gate.across import across
from parabench.analysis.gate.compare import compare
from parabench.analysis.gate.sides import side_of
from parabench.pages import across_report, compare_report
from parabench.record import Failure, Status
from parabench.report import write_report

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(fake.rich(folder / "r.db"), folder / "report.html")


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Every strategy, with long labels, and every section there can be."""
    folder = tmp_path_factory.mktemp("family")
    return write_report(fake.family(folder / "r.db"), folder / "report.html")


@pytest.fixture(scope="module")
def anatomy(tmp_path_factory):
    """Instrumented steps of strategies, with 8 ranks: timelines, buckets, bandwidth."""
    folder = tmp_path_factory.mktemp("anatomy")
    cases = [fake.case(strategy=name, world_size=8) for name in ("ddp", "fsdp", "tp")]
    launches = [step(fake.launch(case, 8.0 + i), late=0.1, ranks="0-7") for i, case in enumerate(cases)]
    return write_report(fake.write(folder / "r.db", launches), folder / "report.html")


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    """All algorithms of ours and a user's own with a long name, over enough sizes to crowd an axis."""
    folder = tmp_path_factory.mktemp("collectives")
    own = f"{'package.' * 8}module:AN_ALGORITHM_OF_MY_OWN_WITH_A_LONG_NAME"
    names = ("native", "ring", "tree", "halving_doubling", "parameter_server", "two_level(ring,tree)", own)
    cases = [
        fake_collectives.case(op, name, world_size=4, max_bytes=1 << 26, factor=2)
        for op in ("all_reduce", "all_gather")
        for name in names
    ]
    launches = fake_collectives.sweep(cases, lambda c, s: 1e-4 + s * 1e-9 * len(c.algorithm), noise=0.02)
    return write_report(fake_collectives.write(folder / "r.db", launches), folder / "report.html")


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """A gate in which cases got slower, faster and out of memory."""
    folder = tmp_path_factory.mktemp("gate")
    cases = [fake.case(bucket_mib=b, world_size=n) for b in (1.0, 4.0, 25.0) for n in (2, 4)]
    oom = fake.launch(cases[0], status=Status.OOM, failure=Failure("out of memory" * 9))
    slow = fake.sweep(cases[1:], lambda c: 0.04 + 0.002 * (c.bucket_mib - 4), noise=0.001, seed=1)
    sides = fake.sweep(cases, lambda c: 0.04, noise=0.001), [oom, *slow]
    both = [side_of(fake.write(folder / f"{i}.db", side)) for i, side in enumerate(sides)]
    (folder / "gate.html").write_text(compare_report.render(compare(*both)))
    return folder / "gate.html"


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Two machines, one of them with a long name."""
    folder = tmp_path_factory.mktemp("machines")
    cases = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 25.0)]
    environments = fake.ENVIRONMENT, fake.ENVIRONMENT | {"cpu": "c" * 200, "host": "other"}
    both = [
        side_of(fake.write(folder / f"{i}.db", fake.sweep(cases, lambda c: 0.04, noise=0.01, seed=i), environment=env))
        for i, env in enumerate(environments)
    ]
    (folder / "machines.html").write_text(across_report.render(across(*both)))
    return folder / "machines.html"


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


def open_page(browser, path, width, scheme="light"):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn=yes]", state="attached")
    return page, said


@pytest.mark.parametrize(
    ("which", "width"),
    [
        *itertools.product(["report", "family", "long_names", "collectives", "anatomy"], [360, 768, 1440]),
        ("gate", 360),
        ("machines", 360),
    ],
)
def test_it_is_drawn_without_complaint_and_fits(browser, request, which, width):
    page, said = open_page(browser, request.getfixturevalue(which), width)
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plots = page.locator(".plot")
    assert plots.count() > 0
    marks = plots.evaluate_all(
        "all => all.map(p => p.querySelectorAll('.point, .points path, .heatmaplayer image, .hm').length)"
    )
    assert all(marks), marks
    page.close()


def test_figures_follow_the_colour_scheme(browser, report):
    sync_api = pytest.importorskip("playwright.sync_api")
    page, said = open_page(browser, report, 1440, "dark")
    ink = sync_api.expect(page.locator("#bucket-0 .xtick text").first)
    ink.to_have_css("fill", "rgb(228, 232, 236)")
    page.emulate_media(color_scheme="light")
    ink.to_have_css("fill", "rgb(27, 31, 36)")
    assert said == []
    page.close()


def test_the_table_sorts_and_unknown_stays_last(browser, report):
    page, said = open_page(browser, report, 1440)
    first = page.locator("#cases tbody tr:first-child .name")
    last = page.locator("#cases tbody tr:last-child .name")
    assert first.inner_text() == "ddp ring 25 MiB, 4 ranks"
    step = page.locator("#cases th", has_text="Step")
    step.locator("button").click()
    assert step.get_attribute("aria-sort") == "descending"
    assert first.inner_text() == "single, 1 rank"
    assert last.inner_text() == "fsdp ring, 4 ranks"
    assert said == []
    page.close()
