"""One try of some families of faults, whose kinds no other test has; `make faults` makes 50 of each."""

from __future__ import annotations

import pytest

from tests.faults.__main__ import FAMILIES, table, tried
from tests.faults.trial import Verdict

# By family a try that is over soon: no rank that is waited for until its deadline.
TRIES = [
    pytest.param("driver told to end while resuming", 0, marks=pytest.mark.slow),  # it is resumed until it is complete
    pytest.param("fork server killed", 0, marks=pytest.mark.slow),  # tests/unit/launch has what is mended of it
    ("rank struck", 7),
    pytest.param("output closed", 0, marks=pytest.mark.slow),  # a whole session, as the one above
]


@pytest.mark.parametrize(("family", "number"), TRIES)
def test_nothing_is_lost(family: str, number: int) -> None:
    verdict = tried(family, 1, number)
    assert verdict.clean, verdict.words


def test_what_goes_wrong_is_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def losing(_: object) -> Verdict:
        verdict = Verdict()
        verdict.fault("lost", "launch 3")
        return verdict

    def raising(_: object) -> Verdict:
        raise RuntimeError("the trial itself")

    monkeypatch.setitem(FAMILIES, "losing", losing)
    monkeypatch.setitem(FAMILIES, "raising", raising)
    assert not tried("losing", 1, 0).clean
    assert "lost: launch 3" in capsys.readouterr().out
    assert "the trial itself" in tried("raising", 1, 0).words[0]
    whole = Verdict()
    whole.add(tried("losing", 1, 1))
    assert "| losing | 2 | 1 | 0 |" in table({"losing": whole})
