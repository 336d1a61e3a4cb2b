"""What becomes of a case between two sides, and what a gate says of all cases."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What became of one case, in the order in which a reader wants them. The first two fail a gate."""

    SLOWER = "slower"
    BROKE = "broke"
    UNCLEAR = "unclear"
    FASTER = "faster"
    SAME = "same"
    NOT_JUDGED = "cannot be judged"
    NOT_OK = "not ok"
    FIXED = "fixed"
    ONLY_BASE = "only in base"
    ONLY_CANDIDATE = "only in candidate"


REGRESSIONS = (Outcome.SLOWER, Outcome.BROKE)


class Verdict(StrEnum):
    """What a gate says."""

    NO_REGRESSION = "no regression"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """0, 1 and 3; 2 is wrong usage."""
        return {Verdict.NO_REGRESSION: 0, Verdict.REGRESSION: 1, Verdict.INCONCLUSIVE: 3}[self]
