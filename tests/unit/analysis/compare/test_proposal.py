"""The rule that accepts a proposal: alpha spending, error rates and power."""

import numpy as np
import pytest

from parabench.analysis.compare.proposal import ALPHA, MOST_PAIRS, SPENT, alpha_of, judged
from parabench.analysis.stats.contrasts import judge


def proposed(lot, spend, gain=0.0, sd=0.01):
    """Return the final judgement of a proposal whose pairs of launches have the standard deviation `sd`."""
    logs = np.log1p(-gain) + sd * lot.standard_normal(MOST_PAIRS)
    for pairs in range(1, MOST_PAIRS + 1):
        test = judge({0: (np.zeros(pairs), logs[:pairs])}, paired=True).get(0)
        said = judged(test, pairs, spend, least=0.01)
        if said.accept is not None:
            return said
    raise AssertionError("it goes on for ever")


def test_proposals_spend_at_most_alpha():
    assert sum(alpha_of(number) for number in range(1, 100_000)) == pytest.approx(ALPHA, rel=1e-4)
    assert sum(alpha_of(number) for number in range(1, 100_000)) < ALPHA
    assert sum(SPENT.values()) == pytest.approx(1)


def test_false_accepts_are_rare():
    """Without a least gain, and with ten times the probability that a first proposal may spend."""
    lot, kept, spend = np.random.default_rng(0), 0, 0.05
    for _ in range(1500):
        logs = 0.01 * lot.standard_normal(MOST_PAIRS)
        for pairs in SPENT:
            said = judged(judge({0: (np.zeros(pairs), logs[:pairs])}, paired=True)[0], pairs, spend, least=0.0)
            if said.accept:
                kept += 1
                break
    # With a true rate of 5%, more are accepted in one of a thousand such tests.
    assert kept <= 103


def test_gain_of_two_percent_is_accepted():
    lot = np.random.default_rng(1)
    gains = [proposed(lot, alpha_of(1), gain=0.02, sd=0.007) for _ in range(200)]
    assert sum(each.accept for each in gains) >= 190
    assert np.median([each.pairs for each in gains]) <= 8
    nothing = [proposed(lot, alpha_of(20)) for _ in range(200)]
    assert not any(each.accept for each in nothing)
    assert np.median([each.pairs for each in nothing]) <= 8


def test_judgement_is_unknown_with_few_pairs():
    assert judged(None, 1, 0.005, 0.01).accept is None
    assert judged(None, 1, 0.005, 0.01, over=True).accept is False
    said = judged(judge({0: (np.zeros(2), np.array([-0.5, -0.1]))}, paired=True)[0], 2, 0.005, 0.01)
    assert said.accept is None
    assert said.gain == pytest.approx(1 - np.exp(-0.3))
