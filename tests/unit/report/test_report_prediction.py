"""The report's section of predictions for more ranks."""

import pytest

import fake_results as fake
import prediction_helpers as helpers
from page_helpers import drawn, figures, made, section
from parabench.analysis.session import session_data
from parabench.report.build import render, training_tabs
from parabench.report.sections.prediction import prediction_section

STRATEGIES = ("ddp", "zero1", "tp")


@pytest.fixture(scope="module")
def between(tmp_path_factory):
    """Three strategies, and links between nodes. Tensor parallelism was measured alone for two ranks only."""
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
def found(between):
    return prediction_section(session_data(between))


def test_section_is_absent_without_compute_only_launches(tmp_path):
    results = fake.write(tmp_path / "r.db", [fake.launch(helpers.case())])
    assert made(session_data(results), prediction_section) == {}
    assert 'id="prediction"' not in render(results)


def test_section_follows_scaling(between):
    tabs = {tab: [each.id for each in own] for tab, own in training_tabs(session_data(between)).items()}
    assert tabs["scaling"] == ["scaling", "prediction"]


def test_figure_has_intervals_and_marks_of_each_strategy(found):
    [panel] = found.panels
    figure = drawn(panel)
    assert list(figure.layout.xaxis.ticktext) == ["2", "4", "8", "16"]
    assert figure.layout.yaxis.title.text == "tokens/s of a rank"
    assert [trace.name for trace in figure.data if trace.name] == ["ddp", "zero1", "tp"]
    line, marks = [trace for trace in figure.data if trace.legendgroup == "ddp"]
    assert list(line.x) == [2, 4, 8, 16]
    assert line.hovertext[1].startswith("ddp native, 4 ranks on 2 nodes<br>predicted: ")
    assert all(more > 0 and less > 0 for more, less in zip(line.error_y.array, line.error_y.arrayminus, strict=True))
    assert (list(marks.x), "measured: " in marks.hovertext[0]) == ([2], True)


def test_table_has_the_parts_of_a_step(found):
    [table] = found.tables
    assert table.closed
    rows = {row[0]: dict(zip(table.head[1:], row[1:], strict=True)) for row in table.rows}
    first, more = rows["ddp native, 2 ranks"], rows["ddp native, 8 ranks on 4 nodes"]
    assert (first["Measured"], first["Between nodes"], more["Measured"]) == ("26.3", "0", "–")
    parts = [float(more[name]) for name in ("Compute", "Slowest rank", "In a node", "Between nodes")]
    assert sum(parts) == pytest.approx(float(more["Predicted"]), rel=0.01)
    low, high = map(float, more["90%"].split(" to "))
    assert low < float(more["Predicted"]) < high


def test_texts_name_the_fastest_of_the_most_ranks_and_refusals(found):
    assert "Not predicted: tp native, 4 ranks on 2 nodes; tp native, 8 ranks on 4 nodes; " in found.reading
    assert found.reading.count("was not measured") == 1
    assert found.lead.startswith("Measured up to 2 ranks. ddp native, 16 ranks on 8 nodes is expected to be the fast")


def test_lead_names_the_command_if_links_were_not_measured(tmp_path):
    results = helpers.write(tmp_path / "results.db", cores=2)
    page = render(results)
    text = section(page, "prediction")
    assert f"For more ranks: parabench predict {results.path.name} --world-size 4,8,16 --link node=25GB/s,20us" in text
    assert "prediction-0" not in figures(page)
    assert "ddp native, 2 ranks" in text
    without = section(render(helpers.write(tmp_path / "r.db", link_nodes=(), cores=2)), "prediction")
    assert "links within a node were not measured" in without
