"""One try of some families of faults, whose kinds no other test has; `make faults` makes 50 of each."""

from __future__ import annotations

import pytest

from tests.faults import contention, disk
from tests.faults.__main__ import tried
from tests.faults.trial import CannotTry


@pytest.mark.slow  # a whole session; tests/process/test_launcher.py and test_turns_launch.py have every kind of fault
def test_nothing_is_lost_when_a_rank_is_struck() -> None:
    # This try is over soon: no rank is waited for until its deadline.
    verdict = tried("rank struck", 1, 7)
    assert verdict.clean, verdict.words


@pytest.mark.parametrize("family", [*disk.FAMILIES, *contention.FAMILIES])
def test_results_survive_faults_of_disk_and_locks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARABENCH_FAULT_SHARES", "300")  # before the first of these starts the process that tries them
    try:
        verdict = tried(family, 1, 0)
    except CannotTry as why:
        pytest.skip(str(why))
    assert verdict.clean, verdict.words
