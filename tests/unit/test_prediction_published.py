"""Predictions of published step rates and of recorded measurements, and the figures of the docs."""

import numpy as np
import pytest

from benchmarks.prediction.held_out import GIVEN, MEASURED, held_out, summary
from benchmarks.prediction.published import TABLES, compute_s, forecasts, page
from paths import DOCS


@pytest.fixture(scope="module")
def found():
    return [forecasts(table) for table in TABLES]


def test_forecasts_start_from_the_measured_row(found):
    for rows in found:
        base, table = rows[0], rows[0].table
        assert base.rate == pytest.approx(base.measured, rel=1e-9)
        # Communication takes time, and more of it among more GPUs.
        predicted = [each.rate for each in rows]
        assert predicted == sorted(predicted, reverse=True)
        assert 0.5 < compute_s(table) / (table.per_gpu / base.measured) < 1


def test_page_is_what_the_benchmark_writes(found):
    assert (DOCS / "measured/published.md").read_text() == page(found)
    larger = [each for rows in found for each in rows if each.gpus != each.table.base]
    assert np.mean([abs(each.errors[0]) for each in larger]) < 0.04


def test_predictions_of_the_recorded_truth_keep_their_promise() -> None:
    """Errors and coverage of the intervals match docs/explanation/prediction.md."""
    found = list(held_out())
    for links, least in ((MEASURED, 50), (GIVEN, 40)):
        own = [each for each in found if each.links == links]
        errors = [each.error for each in own]
        assert len(own) >= least
        assert np.median(errors) <= 0.06
        assert np.quantile(errors, 0.9) <= 0.13
        assert 0.85 <= np.mean([each.inside for each in own]) <= 0.95
    count = sum(each.links == GIVEN for each in found)
    assert list(summary(found))[-1] == f"without links between nodes: {count} of {count} refused"
