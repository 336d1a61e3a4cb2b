"""Figures of launches: the places of marks, bars and limits."""

from __future__ import annotations

import pytest

import fake_results as fake
from page_helpers import drawn
from parabench.analysis.session import session_data
from parabench.report.figures.launches import drift, spread

DDP, FSDP, ONCE = fake.case(), fake.case(strategy="fsdp"), fake.case(strategy="zero1")
# The faster launches, in percent of their configuration's step time.
LOW_DDP, LOW_FSDP = 100 * (1 / 1.01 - 1), 100 * (1 / 1.02 - 1)


def step(seconds, drift=0.0):
    return [seconds] * 7 + [seconds * (1 + drift / 2)] * 6 + [seconds * (1 + drift)] * 7


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Two launches of DDP and two of FSDP around 1 s, the mean of their logarithms, and one of another strategy."""
    written = [
        fake.launch(DDP, step(1 / 1.01), block=0),
        fake.launch(FSDP, step(1 / 1.02, drift=0.2), block=0),
        fake.launch(ONCE, step(1.0), block=0),
        fake.launch(DDP, step(1.01), block=1),
        fake.launch(FSDP, step(1.02, drift=0.2), block=1),
    ]
    return session_data(fake.write(tmp_path_factory.mktemp("launches") / "r.db", written))


def test_spread_has_the_cases_that_differ_most_on_top(known):
    (panel,) = spread(known)
    figure = drawn(panel)
    assert panel.title == "4 launches of 2 configurations"
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(-2.5, 2.5)]
    assert figure.layout.yaxis.ticktext == ("fsdp native, 2 ranks", "ddp native, 2 ranks")
    ddp, fsdp = figure.data
    assert (ddp.x, ddp.y, ddp.customdata) == (pytest.approx((LOW_DDP, 1)), (1, 1), (DDP.id,) * 2)
    assert (fsdp.x, fsdp.y, fsdp.customdata) == (pytest.approx((LOW_FSDP, 2)), (0, 0), (FSDP.id,) * 2)
    assert ddp.hovertext[0].endswith("<br>block 0: 990 ms per step<br>−1.0% from its configuration's step time")
    assert panel.figure["layout"]["meta"]["rows"]["which"] == "that differ most"


def test_spread_has_no_band_for_a_device_of_unknown_variation(tmp_path):
    panels = spread(session_data(fake.rich(tmp_path / "r.db", gpu=True)))
    assert not any(drawn(panel).layout.shapes for panel in panels)


def test_drift_counts_launches_beyond_the_limit_of_their_device(known):
    (panel,) = drift(known)
    figure = drawn(panel)
    assert panel.title == "5 launches in all · 2 beyond the dashed lines"
    assert [shape.y0 for shape in figure.layout.shapes] == [-10, 10]
    assert {trace.name: (trace.x, trace.y) for trace in figure.data} == {
        "ddp": ((1, 4), (0, 0)), "fsdp": ((2, 5), pytest.approx((20, 20))), "zero1": ((3,), (0,))
    }  # fmt: skip


def test_single_launches_have_no_figure(tmp_path):
    alone = session_data(fake.write(tmp_path / "r.db", [fake.launch(DDP, 0.04, steps=4)]))
    assert [draw(alone) for draw in (spread, drift)] == [[], []]
