"""Columns as the page embeds them, and back."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from page_helpers import unpacked
from parabench.report.packing import column


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        ([7, 7, 7], {"all": 7}),
        ([None, None], {"all": None}),
        ([4, 5, 6, 7], {"from": 4}),
        ([4096, 0, 8192, 4096 * 5], {"times": 4096, "of": [1, 0, 2, 5]}),
        ([np.nan, 300.0, 200.0], {"times": 100, "of": [None, 3, 2]}),
        (["a", "b"] * 8, {"values": ["a", "b"], "of": [0, 1] * 8}),
        ([True, None], [True, None]),
        ([0.123456789, 12345.678], [0.12346, 12346]),
        ([123456789, 5], [123456789, 5]),  # what is whole stays exact
        ([1, 3], [1, 3]),
        ([], {"values": [], "of": []}),
    ],
)
def test_a_column_is_packed_in_the_form_that_is_shortest(values, packed):
    assert column(pd.Series(values)) == packed


@pytest.mark.parametrize("seed", range(4))
def test_what_is_packed_can_be_read_back(seed):
    random = np.random.default_rng(seed)
    for values in (
        random.integers(0, 5, 40) * 512,
        random.integers(0, 1 << 40, 9),
        np.where(random.random(30) < 0.3, np.nan, random.integers(0, 9, 30) * 7.0),
        random.choice(["x", "y", None], 25),
        np.arange(3, 20),
    ):
        read = unpacked(json.loads(json.dumps(column(pd.Series(values)))), len(values))
        assert read == [None if each is None or each != each else each for each in values.tolist()]
