"""Rules of the house that no linter knows: no circles, and no document that names what is not there."""

from __future__ import annotations

from test_imports import arrows

from benchmarks.measure import circles, measuring, table


def test_a_circle_is_found() -> None:
    assert circles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")]) == [["a", "b", "c"]]
    assert circles([("a", "b"), ("a", "c"), ("b", "c")]) == []


def test_nothing_that_measures_imports_in_a_circle() -> None:
    assert [circle for circle in circles(arrows()) if set(circle) & set(measuring())] == []


def test_the_table_has_a_number_in_every_row() -> None:
    for what, now, aim in table():
        assert "" not in (now, aim), what
