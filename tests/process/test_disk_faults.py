"""A try of each fault of the disk, and of others at a store: `python -m tests.faults` makes fifty, and larger ones."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults import contention, disk
from tests.faults.trial import CannotTry

# The server makes its pages in processes of their own, which take longer than all else.
FAMILIES = {**disk.FAMILIES, **contention.FAMILIES}
del FAMILIES["serve during a session"]


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SHARES", 300)
    try:
        verdict = FAMILIES[name](Random(name))
    except CannotTry as why:
        pytest.skip(str(why))
    assert verdict.words == []
    assert verdict.clean
