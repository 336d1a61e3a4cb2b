"""One try of the families whose faults no other test has; `make faults` makes 50 tries of each family."""

import pytest

from tests.faults import contention, disk
from tests.faults.__main__ import tried
from tests.faults.trial import CannotTry


@pytest.mark.parametrize("family", [*disk.FAMILIES, *contention.FAMILIES])
def test_results_survive_faults_of_disk_and_locks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARABENCH_FAULT_SHARES", "300")  # before the first of these starts the process that forks
    try:
        assert tried(family, 1, 0).words == []
    except CannotTry as why:
        pytest.skip(str(why))
