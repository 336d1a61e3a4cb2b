"""Numbers and quantities as text."""

import pytest

from parabench.analysis.format import duration, margin_ms, margin_rate, times_between, within


@pytest.mark.parametrize(
    ("function", "values", "text"),
    [
        (duration, (0.31,), "0.31 s"), (duration, (99.4,), "99 s"), (duration, (99.6,), "2 min"),
        (duration, (750,), "12 min"), (duration, (5969,), "99 min"), (duration, (5971,), "1.7 h"),
        (within, (0.0,), "no spread"), (within, (0.00004,), "less than ±0.01%"), (within, (0.013,), "±1.3%"),
        (within, (11.0,), "more than ±1,000%"),
        (margin_ms, (0.00031, 0.0222), "0.3"), (margin_ms, (3.1e-05, 0.0222), "0.03"),
        (margin_ms, (3.1e-06, 0.0222), "0.003"), (margin_ms, (3.1e-07, 0.0222), "<0.001"),
        (margin_ms, (0, 0.0222), "<0.001"), (margin_ms, (0.0123, 1.234), "12"),
        (margin_rate, (120.4, 23040), "120"), (margin_rate, (0.31, 22.2), "0.3"), (margin_rate, (0, 23040), "<0.01"),
        (times_between, (0.83, 0.91), "0.83 to 0.91"), (times_between, (0.8312, 0.8338), "0.831 to 0.834"),
        (times_between, (0.83121, 0.83138), "0.8312 to 0.8314"), (times_between, (1.0, 1.0), "1.00 to 1.00"),
        (times_between, (12.34, 56.7), "12.3 to 56.7"),
    ],
)  # fmt: skip
def test_number_has_sensible_digits_and_units(function, values, text):
    assert function(*values) == text
