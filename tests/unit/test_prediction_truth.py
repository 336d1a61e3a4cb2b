"""Predictions of the recorded measurements."""

import numpy as np

from benchmarks.prediction.held_out import GIVEN, MEASURED, held_out, summary


def test_predictions_of_the_recorded_truth_keep_their_promise() -> None:
    """Errors and coverage of the intervals are those of docs/explanation/prediction.md."""
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
