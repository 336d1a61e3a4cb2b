"""Numbers as words."""

from __future__ import annotations

import pytest

from parabench.analysis import format


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.31, "0.31 s"), (99.4, "99 s"), (99.6, "2 min"), (750, "12 min"), (5969, "99 min"), (5971, "1.7 h")],
)
def test_duration_has_the_units_that_people_wait_in(seconds, said):
    assert format.duration(seconds) == said


@pytest.mark.parametrize(
    ("half_width", "said"),
    [(0.0, "no spread"), (0.00004, "less than ±0.01%"), (0.013, "±1.3%"), (11.0, "more than ±1,000%")],
)
def test_within_uses_words_for_extreme_half_widths(half_width, said):
    assert format.within(half_width) == said


@pytest.mark.parametrize(
    ("margin_of", "margin", "of", "text"),
    [
        (format.margin_ms, 0.00031, 0.0222, "0.3"),
        (format.margin_ms, 3.1e-05, 0.0222, "0.03"),
        (format.margin_ms, 3.1e-06, 0.0222, "0.003"),
        (format.margin_ms, 3.1e-07, 0.0222, "<0.001"),
        (format.margin_ms, 0, 0.0222, "<0.001"),
        (format.margin_ms, 0.0123, 1.234, "12"),
        (format.margin_rate, 120.4, 23040, "120"),
        (format.margin_rate, 0.31, 22.2, "0.3"),
        (format.margin_rate, 0, 23040, "<0.01"),
    ],
)
def test_margin_has_the_decimals_of_its_number(margin_of, margin, of, text):
    assert margin_of(margin, of) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.83, 0.91, "0.83 to 0.91"), (0.8312, 0.8338, "0.831 to 0.834"), (0.83121, 0.83138, "0.8312 to 0.8314"),
        (1.0, 1.0, "1.00 to 1.00"), (12.34, 56.7, "12.3 to 56.7"),
    ],
)  # fmt: skip
def test_interval_has_digits_until_its_ends_differ(low, high, text):
    assert format.times_between(low, high) == text
