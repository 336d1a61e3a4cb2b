"""Numbers as words."""

from __future__ import annotations

import pytest

from parabench.analysis import format


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.31, "0.31 s"), (99.4, "99 s"), (99.6, "2 min"), (750, "12 min"), (5969, "99 min"), (5971, "1.7 h")],
)
def test_times_are_said_as_one_waits_for_them(seconds, said):
    assert format.duration(seconds) == said


@pytest.mark.parametrize(
    ("half_width", "said"),
    [(0.0, "no spread"), (0.00004, "less than ±0.01%"), (0.013, "±1.3%"), (11.0, "more than ±1,000%")],
)
def test_a_half_width_beyond_figures_is_said_in_words(half_width, said):
    assert format.within(half_width) == said
