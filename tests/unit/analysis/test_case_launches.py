"""Launches of cases as arrays."""

from __future__ import annotations

import pandas as pd

from parabench.analysis.case_launches import NO_LAUNCHES, by_case, in_turns


def launches(*rows):
    return pd.DataFrame(rows, columns=["launch_id", "case_id", "block", "value"])


def test_each_case_has_its_launches_in_the_order_of_blocks():
    found = by_case(launches((1, "b", 1, 3.0), (2, "a", 0, 1.0), (3, "b", 0, 2.0)), "value")
    assert {case: own.ids for case, own in found.items()} == {"a": (2,), "b": (3, 1)}
    assert found["b"].block.tolist() == [0, 1]
    assert found["b"].value.tolist() == [2.0, 3.0]
    assert by_case(launches(), "value") == {}


def test_of_sides_that_took_turns_the_blocks_that_both_have_are_compared():
    table = launches((1, "a", 0, 1.0), (2, "a", 1, 1.0), (3, "a", 2, 1.0), (4, "b", 2, 1.0), (5, "b", 0, 1.0))
    sides = by_case(table, "value")
    assert [own.ids for own in in_turns((sides["a"], sides["b"]))] == [(1, 3), (5, 4)]
    assert [len(own) for own in in_turns((sides["a"], NO_LAUNCHES))] == [0, 0]
