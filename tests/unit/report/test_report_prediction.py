"""The section of what more ranks are predicted to give."""

from __future__ import annotations

import pytest

import fake_results as fake
import prediction_helpers as helpers
from page_helpers import Page, drawn, figures, made, section
from parabench.analysis.prediction.outlook import outlooks
from parabench.analysis.session import session_data
from parabench.report.build import render
from parabench.report.registry import training_tabs
from parabench.report.sections import prediction
from parabench.report.sections.prediction import prediction_section

STRATEGIES = ("ddp", "zero1", "tp")


@pytest.fixture(scope="module")
def between(tmp_path_factory):
    """Three strategies, and links between nodes. What tensor parallel computes is known of two ranks alone."""
    cases = [helpers.case(name) for name in STRATEGIES]
    step_s = dict(zip(STRATEGIES, (0.026, 0.028, 0.030), strict=True))
    return helpers.write(
        tmp_path_factory.mktemp("between") / "results.db",
        computed=cases,
        trained=[(each, step_s[each.strategy]) for each in cases],
        link_nodes=(1, 2),
        cores=2,
    )


@pytest.fixture(scope="module")
def seen(between):
    return session_data(between)


@pytest.fixture(scope="module")
def found(seen):
    return prediction_section(seen)


def test_a_store_of_trainings_alone_has_no_such_section(tmp_path):
    results = fake.write(tmp_path / "r.db", [fake.launch(helpers.case())])
    assert made(session_data(results), prediction_section) == {}
    assert 'id="prediction"' not in render(results)


def test_it_stands_below_scaling(seen):
    tabs = {tab.id: [each.id for each in tab.sections] for tab in training_tabs(seen)}
    assert tabs["scaling"] == ["scaling", "prediction"]


def test_a_line_with_a_band_for_each_strategy(seen, found):
    [panel] = found.panels
    figure = drawn(panel)
    assert list(figure.layout.xaxis.ticktext) == ["2", "4", "8", "16", "32", "64"]
    assert figure.layout.yaxis.title.text == "tokens/s of a rank"
    named = {trace.name: trace for trace in figure.data if trace.name}
    assert list(named) == ["ddp", "zero1", "tp"]
    ddp = named["ddp"]
    [outlook] = seen.once(outlooks)
    curve = outlook.curve("ddp")
    case = curve[0].case
    assert list(ddp.x) == [2, 4, 8, 16, 32, 64]
    assert list(ddp.y) == pytest.approx([helpers.PER_RANK * case.seq_len / each.step_s for each in curve])
    assert ddp.customdata[1].startswith("ddp native, 4 ranks on 2 nodes<br>predicted: ")
    band = next(trace for trace in figure.data if trace.fill == "toself" and trace.legendgroup == "ddp")
    assert len(band.x) == 12
    assert all(low < rate < high for low, rate, high in zip(band.y[:5:-1], ddp.y, band.y[:6], strict=True))


def test_one_prediction_of_a_strategy_has_its_interval(found):
    [tp] = [trace for trace in drawn(found.panels[0]).data if trace.name == "tp"]
    assert (tp.mode, list(tp.x)) == ("markers", [2])
    assert 0 < tp.error_y.arrayminus[0] < tp.error_y.array[0]
    assert not [trace for trace in found.panels[0].figure["data"] if trace["legendgroup"] == "tp" and "fill" in trace]


def test_what_was_measured_is_marked_and_its_rate_is_kept(found):
    own = [trace for trace in drawn(found.panels[0]).data if trace.legendgroup == "ddp"]
    [mark] = [trace for trace in own if trace.mode == "markers"]
    [naive] = [trace for trace in own if trace.line.dash == "dash"]
    assert list(mark.x) == [2]
    assert "measured: " in mark.customdata[0]
    assert list(naive.x) == [2, 4, 8, 16, 32, 64]
    assert list(naive.y) == pytest.approx(6 * [mark.y[0]])


def test_the_table_has_what_a_step_is_made_of(found):
    table = found.tables[0]
    assert table.closed
    rows = {row[0]: dict(zip(table.head[1:], row[1:], strict=True)) for row in table.rows}
    first, more = rows["ddp native, 2 ranks"], rows["ddp native, 8 ranks on 4 nodes"]
    assert (first["Measured"], first["Same rate"], first["Between nodes"]) == ("26.3", "–", "0")
    assert (more["Measured"], more["Same rate"]) == ("–", "26.3")
    parts = [float(more[name]) for name in ("Compute", "Slowest rank", "In a node", "Between nodes")]
    assert sum(parts) == pytest.approx(float(more["Predicted"]), rel=0.01)
    assert more["Memory, MiB"] == "101"
    low, high = map(float, more["90 %"].split(" to "))
    assert low < float(more["Predicted"]) < high


def test_what_was_refused_at_several_sizes_has_one_reason(found):
    refused = found.tables[1]
    assert refused.title == "Not predicted"
    names = [f"tp native, {n} ranks on {n // 2} nodes" for n in (4, 8, 16, 32)]
    [(cases, reason)] = refused.rows
    assert cases == "; ".join(names) + "; and 1 more"
    assert "among 4 ranks on 2 nodes" in reason
    assert "was not measured" in reason


def test_of_many_reasons_the_first_are_listed(tmp_path, monkeypatch):
    """Of tensor parallel and of layers what a rank computes was not measured."""
    monkeypatch.setattr(prediction, "MOST_REFUSED", 1)
    computed = [helpers.case("tp"), helpers.case("layer_split")]
    results = helpers.write(tmp_path / "r.db", computed=computed, trained=[(computed[0], 0.03)], link_nodes=(1, 2))
    table = prediction_section(session_data(results)).tables[-1]
    assert len(table.rows) == 1
    assert table.note == "Listed are 1 of 2 reasons."


def test_the_lead_is_the_sentence_of_best(found):
    assert found.lead.startswith("Measured up to 2 ranks. At 4 ranks on 2 nodes ddp ")
    assert "parabench predict" not in found.lead


def test_without_links_between_nodes_it_says_what_to_give(tmp_path):
    results = helpers.write(tmp_path / "results.db", cores=2)
    page = render(results)
    told = section(page, "prediction")
    assert f"For more ranks: parabench predict {results.path.name} --world-size 4,8,16 --link node=25GB/s,20us" in told
    # One number of ranks makes no line; what it would have been stands in the open.
    assert "prediction-0" not in figures(page)
    assert "ddp native, 2 ranks" in told


def test_the_whole_page(between):
    page = render(between)
    assert "prediction-0" in figures(page)
    assert "At 16 ranks on 8 nodes ddp " in Page(page).text


def test_nothing_can_be_predicted(tmp_path):
    results = helpers.write(tmp_path / "r.db", link_nodes=(), cores=2)
    told = section(render(results), "prediction")
    assert "--link local=300GB/s,5us --link node=25GB/s,20us" in told
    assert "Not predicted" in told
    assert "links within a node were not measured" in told
