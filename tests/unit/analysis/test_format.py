"""Numbers as words."""

from __future__ import annotations

import pytest

from parabench.analysis.text import format


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.31, "0.31 s"), (99.4, "99 s"), (99.6, "2 min"), (750, "12 min"), (5969, "99 min"), (5971, "1.7 h")],
)
def test_times_are_said_as_one_waits_for_them(seconds, said):
    assert format.duration(seconds) == said
