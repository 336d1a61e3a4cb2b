"""One try of each family of faults on two nodes: the whole is `python -m tests.faults`."""

from __future__ import annotations

import pytest

from tests.faults.__main__ import tried
from tests.faults.nodes import FAMILIES
from tests.faults.trial import CannotTry


# A session on two nodes each, and most are resumed.
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_faults(family: str) -> None:
    try:
        verdict = tried(family, 1, 0)
    except CannotTry as why:
        pytest.skip(str(why))
    assert verdict.clean, verdict.words
