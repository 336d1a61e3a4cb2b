"""Tables as the page embeds them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from parabench.report.page import packed


@pytest.mark.parametrize(
    ("values", "embedded"),
    [
        ([None, None], [None, None]),
        ([np.nan, 300.0, 200.0], [None, 300, 200]),
        ([True, None], [True, None]),
        ([0.123456789, 12345.678], [0.12346, 12346]),
        ([123456789, 5], [123456789, 5]),  # whole numbers stay exact
        ([], []),
    ],
)
def test_table_is_embedded_as_json(values, embedded):
    assert packed(pd.DataFrame({"a": values})) == {"n": len(values), "a": embedded}
