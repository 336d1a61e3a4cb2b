"""One try of the families whose faults no other test has; `make faults` makes 50 tries of each family."""

import pytest

from tests.faults import contention, disk
from tests.faults.__main__ import tried
from tests.faults.trial import CannotTry


@pytest.mark.slow  # a whole session; tests/process/test_launcher.py and test_turns_launch.py have every kind of fault
def test_session_survives_a_failed_rank() -> None:
    # In this try, the session does not wait for a rank until its deadline.
    assert tried("rank struck", 1, 7).words == []


@pytest.mark.parametrize("family", [*disk.FAMILIES, *contention.FAMILIES])
def test_results_survive_faults_of_disk_and_locks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARABENCH_FAULT_SHARES", "300")  # before the first of these starts the process that forks
    try:
        assert tried(family, 1, 0).words == []
    except CannotTry as why:
        pytest.skip(str(why))
