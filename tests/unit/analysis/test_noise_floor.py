"""The noise floor of shared launches is the difference between two copies of a configuration."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fake_results as fake
import fake_turns
from parabench.analysis.carry_over import noise_floor
from parabench.analysis.session import session_data
from parabench.store.record import TWIN_REPETITION

CASES = [fake.case(bucket_mib=size) for size in (1.0, 25.0)]


def floor(path, slower, launches=20):
    """The noise floor of launches whose twins are so much slower."""
    rng, written = np.random.default_rng(0), []
    for repetition in range(launches):
        of = fake_turns.shared(
            [*(each.id for each in CASES), CASES[0].id], rng, seed=repetition, noise=0.02, of_launch=0.01, disturbed=0.0
        )
        of.turns[2] += slower - 0.1  # the fixture's last case is 10% slower than its first
        arms = fake_turns.launches(of, [*CASES, CASES[0]], repetition)
        arms[2].repetition = TWIN_REPETITION
        written += arms
    seen = session_data(fake.write(path / "results.db", written))
    assert set(seen.cases["n_launches"]) == {launches}
    return noise_floor(seen)


@pytest.mark.parametrize(("slower", "shown"), [(0.0, r"0\.\d+"), (0.03, r"[23]\.\d")])
def test_noise_floor_has_the_difference_of_copies(tmp_path, slower, shown):
    (line,) = floor(tmp_path, slower)
    words = "Two copies of ddp native 1 MiB, 2 ranks differed by "
    pattern = rf"{words}({shown})% \(95%: ±(0\.\d+)%\) in 20 shared launches\."
    difference, half_width = map(float, re.fullmatch(pattern, line).groups())
    assert abs(difference - 100 * np.expm1(slower)) < 2 * half_width < 2
