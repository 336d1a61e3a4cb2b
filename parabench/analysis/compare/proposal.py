"""Accept a proposal or reject it: the rule of `parabench ab --series`.

If many proposals change nothing, one finally looks faster by chance. So the probability of any false accept is bounded
over the whole series. The n-th proposal may spend ALPHA / (n (n + 1)), divided among the looks at its launches. This is
alpha spending (K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70,
1983). A rejection claims nothing, so it may come after any launch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parabench.analysis import format
from parabench.analysis.compare.comparison import REGRESSIONS
from parabench.analysis.compare.gate import compare
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import TTest, factor, judge

# The chance of any false accept in a whole series, and the smallest gain that is worth a change.
ALPHA, LEAST = 0.01, 0.01
# Looks at which a proposal may be accepted, by pairs of launches, and the share of alpha of each. The largest share is
# for the look that detects a gain of 2% on a quiet machine.
SPENT = {4: 0.1, 8: 0.6, 12: 0.15, 18: 0.1, 27: 0.05}
MOST_PAIRS = max(SPENT)
# A rejection needs this number of pairs. With fewer, the noise between launches is unknown.
FIRST_REJECT = 3


@dataclass(frozen=True)
class Judgement:
    """The decision about a proposal: accepted, rejected, or open."""

    accept: bool | None = None  # None if more pairs are needed
    why: str = ""
    pairs: int = 0
    gain: float | None = None  # the saved share of a step, as geometric mean over all cases
    low: float | None = None  # the 95% interval for this proposal alone
    high: float | None = None
    at_least: float | None = None  # the lower bound at the confidence of an accept


def alpha_of(number: int, alpha: float = ALPHA) -> float:
    """Return the probability of a false accept that the n-th proposal of a series may spend (n starts at 1)."""
    return alpha / (number * (number + 1))


def judge_proposal(
    base: SessionData, candidate: SessionData, spend: float, least: float = LEAST, over: bool = False
) -> Judgement:
    """Judge a proposal, `candidate`, by the launches of both sessions, the variants of one `ab`.

    It may `spend` this probability of a false accept (`alpha_of`). `over` means that no more launches follow.
    """
    cases = compare(base, candidate).tables["cases"]
    worse = cases[cases["outcome"].isin(REGRESSIONS)]
    before, after = (side.timed.set_index(["repetition", "case"])["step_s"] for side in (base, candidate))
    # Only repetitions with every case in both sessions are used.
    ratios = (after / before).unstack("case").dropna().to_numpy(dtype=float)
    logs = np.log(ratios).mean(axis=1)
    tests = judge({"": (np.zeros(len(logs)), logs)}, paired=True)
    found = judged(tests.get(""), len(logs), spend, least, over)
    if len(worse):
        named = format.listed((worse["label"] + " " + worse["outcome"]).tolist(), most=3)
        found = replace(found, accept=False, why=f"a configuration is worse: {named}", at_least=None)
    return found


def judged(test: TTest | None, pairs: int, spend: float, least: float = LEAST, over: bool = False) -> Judgement:
    """Judge a proposal by the test of its mean over cases, after this number of pairs of launches."""
    over = over or pairs >= MOST_PAIRS
    if test is None:
        return Judgement(False if over else None, "too few launches have ended" if over else "", pairs)
    # Nothing is spent between looks. There, `at_least` has the confidence of the next look.
    share = next(SPENT[look] for look in SPENT if look >= min(pairs, MOST_PAIRS))
    bounds = (test.difference, test.high, test.low, test.bound(1 - spend * share))
    gain, low, high, at_least = (1 - factor(each) for each in bounds)
    accept, why = None, ""
    if pairs in SPENT and at_least > 0 and gain >= least:
        accept, why = True, f"it saves {format.percent(gain)} of a step, at least {format.percent(at_least)}"
    elif pairs >= FIRST_REJECT and 1 - factor(2 * test.difference - test.upper) < least:
        accept, why = False, f"a gain of {format.percent(least)} of a step is ruled out"
    elif over:
        accept, why = False, f"no gain is shown in {format.count(pairs, 'pair')} of launches"
    return Judgement(accept, why, pairs, gain, low, high, at_least)
