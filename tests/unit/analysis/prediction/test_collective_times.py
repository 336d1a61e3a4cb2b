"""Times between, below and beyond the sizes that were measured."""

from __future__ import annotations

import numpy as np
import pytest

import fake_collectives as fake
from parabench.analysis.prediction.collective_times import BEYOND, Collective, measured_times
from parabench.analysis.session import select_session
from parabench.errors import UsageError

OF_TWO = Collective("all_reduce", "native", 2)


@pytest.fixture(name="times")
def _times(tmp_path):
    cases = [fake.case("all_reduce", algorithm, world_size=2) for algorithm in ("native", "ring")]
    slower = {"native": 1.0, "ring": 2.0}
    truth = lambda case, size: slower[case.algorithm] * (1e-4 + size * 1e-9)  # noqa: E731
    results = fake.write(tmp_path / "results.db", fake.sweep(cases, truth))
    return measured_times(results, [select_session(results)])


def test_a_measured_size_takes_what_was_measured(times):
    assert set(times) == {OF_TWO, Collective("all_reduce", "ring", 2)}
    found = times[OF_TWO]
    assert found.launches == 3
    assert found.sizes.tolist() == [1 << 16, 1 << 18, 1 << 20, 1 << 22]
    assert found(found.sizes) == pytest.approx(1e-4 + found.sizes * 1e-9)


def test_between_two_sizes_the_logarithms_are_linear(times):
    found = times[OF_TWO]
    between = np.sqrt(found.sizes[:-1] * found.sizes[1:])
    assert found(between) == pytest.approx(np.sqrt(found.seconds[:-1] * found.seconds[1:]))


def test_small_calls_take_the_latency_and_large_ones_go_by_their_bytes(times):
    found = times[OF_TWO]
    assert found(np.array([1.0, 100.0])) == pytest.approx(found.seconds[0])
    assert found(found.sizes[-1:] * 4) == pytest.approx(found.seconds[-1] * 4)


def test_much_beyond_what_was_measured_nothing_is_told(times):
    found = times[OF_TWO]
    largest = int(found.sizes[-1])
    found.require(BEYOND * largest)
    assert np.isinf(found(np.array([BEYOND * largest + 1.0])))
    said = "all_reduce native among 2 ranks was measured up to 4 MiB, and 64 MiB is more than 8 times as much; measure"
    with pytest.raises(UsageError, match=said) as raised:
        found.require(16 * largest)
    assert str(raised.value).endswith(
        "parabench collectives --op all_reduce --algorithm native --world-size 2 --max 64MiB"
    )
