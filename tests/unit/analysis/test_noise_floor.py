"""How much two copies of a configuration differ is the noise floor of shared launches."""

from __future__ import annotations

import numpy as np
import pytest

import fake_results as fake
import fake_turns
from parabench.analysis.noise_floor import noise_floor, sentence
from parabench.analysis.session import session_data
from parabench.store.record import TWIN_BLOCK

CASES = [fake.case(bucket_mib=size) for size in (1.0, 25.0)]


def floor(path, slower, launches=20):
    """The noise floor of launches whose twins are so much slower, and the labels."""
    rng, written = np.random.default_rng(0), []
    for block in range(launches):
        of = fake_turns.shared(
            [*(each.id for each in CASES), CASES[0].id], rng, seed=block, noise=0.02, of_launch=0.01, disturbed=0.0
        )
        of.turns[2] += slower - 0.1  # the fixture's last case is 10% slower than its first
        arms = fake_turns.launches(of, [*CASES, CASES[0]], block)
        arms[2].block = TWIN_BLOCK
        written += arms
    seen = session_data(fake.write(path / "results.db", written))
    assert set(seen.cases["n_launches"]) == {launches}
    return noise_floor(seen), dict(zip(seen.cases["case_id"], seen.cases["label"], strict=True))


@pytest.mark.parametrize("slower", [0.0, 0.03])
def test_what_copies_differ_by_has_its_interval(tmp_path, slower):
    found, labels = floor(tmp_path, slower)
    assert found.case_id == CASES[0].id
    assert found.launches == 20
    assert abs(np.log1p(found.difference) - slower) < 2 * found.half_width < 0.02
    assert found.sd == pytest.approx(0.01 * 2**0.5, rel=0.4)
    said = sentence(found, labels)
    assert said.startswith("Two copies of ddp native 1 MiB, 2 ranks differed by ")
    assert said.endswith(" in 20 shared launches.")
