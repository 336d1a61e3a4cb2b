"""Columns as the page embeds them, and back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from parabench.report.page import column


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        ([7, 7, 7], {"all": 7}),
        ([None, None], {"all": None}),
        ([np.nan, 300.0, 200.0], [None, 300, 200]),
        (["a", "b"] * 8, {"values": ["a", "b"], "of": [0, 1] * 8}),
        ([True, None], [True, None]),
        ([0.123456789, 12345.678], [0.12346, 12346]),
        ([123456789, 5], [123456789, 5]),  # what is whole stays exact
        ([1, 3], [1, 3]),
        ([], {"values": [], "of": []}),
    ],
)
def test_column_is_packed(values, packed):
    assert column(pd.Series(values)) == packed
