"""One try of each family of faults; `make faults` makes 50."""

import pytest

from tests.faults import contention, disk, drivers, nodes, ranks
from tests.faults.__main__ import tried
from tests.faults.trial import CannotTry


def check(family: str) -> None:
    """Try a family once. Skip the test if this machine cannot inject the fault."""
    try:
        assert tried(family, 1, 0).words == []
    except CannotTry as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("family", [*disk.FAMILIES, *contention.FAMILIES])
def test_results_survive_faults_of_disk_and_locks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARABENCH_FAULT_SHARES", "300")  # before the first of these starts the process that forks
    check(family)


@pytest.mark.slow  # whole sessions, also on two nodes
@pytest.mark.parametrize("family", [*ranks.FAMILIES, *drivers.FAMILIES, *nodes.FAMILIES])
def test_sessions_survive_faults_of_processes_and_nodes(family: str) -> None:
    check(family)
