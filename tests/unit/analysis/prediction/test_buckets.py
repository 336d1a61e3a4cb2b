"""DDP's rule, and the best list of buckets against all lists that there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from parabench.analysis.prediction.buckets import Gradient, assigned, best, reduced
from parabench.analysis.stats.quantiles import Numbers


def linear(sizes: Numbers) -> Numbers:
    """A latency of 1 s, and 10 bytes a second."""
    return 1.0 + sizes / 10


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_gradients_are_assigned_as_torch_does_it(elements: list[int], caps: list[int]) -> None:
    tensors = [torch.empty(count) for count in elements]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(tensors))  # type: ignore[attr-defined]
    assert assigned([4 * count for count in elements], caps) == sorted(map(list, theirs))


def test_buckets_are_reduced_one_after_another() -> None:
    gradients = [Gradient(10, 1.0), Gradient(10, 2.0), Gradient(20, 8.0)]
    # Two in the first bucket: from 2 to 5; the third from 8 to 11.
    found = reduced(gradients, [20], linear)
    assert (found.bytes, found.reduced_s) == ((20, 20), 11.0)
    # One each: 1 to 3, 3 to 5, 8 to 11.
    assert reduced(gradients, [1], linear).reduced_s == 11.0
    # All in one: 8 to 13.
    assert reduced(gradients, [100], linear).reduced_s == 13.0


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0, 5)), min_size=1, max_size=9),
    st.floats(0.01, 3),
    st.floats(0.5, 2),
)
def test_no_other_list_is_better(told: list[tuple[int, float]], latency: float, power: float) -> None:
    moments = np.maximum.accumulate([ready for _, ready in told])
    gradients = [Gradient(size, float(ready)) for (size, _), ready in zip(told, moments, strict=True)]

    def seconds(sizes: Numbers) -> Numbers:
        return latency + (sizes / 20) ** power

    found = best(gradients, seconds)
    # What DDP makes of the list is what was found.
    caps = [int(cap * 2**20) for cap in found.caps_mib]
    assert reduced(gradients, caps, seconds).bytes == found.bytes
    assert reduced(gradients, caps, seconds).reduced_s == pytest.approx(found.reduced_s)
    inner = range(1, len(gradients))
    for cuts in itertools.chain.from_iterable(itertools.combinations(inner, n) for n in range(len(gradients))):
        bounds = [0, *cuts, len(gradients)]
        sizes = [sum(each.bytes for each in gradients[a:b]) for a, b in itertools.pairwise(bounds)]
        assert reduced(gradients, sizes, seconds).reduced_s >= found.reduced_s - 1e-9


def test_many_gradients_take_no_time_to_speak_of() -> None:
    gradients = [Gradient(1000 + at % 7, at * 1e-4) for at in range(1000)]
    found = best(gradients, lambda sizes: 5e-4 + sizes * 1e-8)
    assert sum(found.bytes) == sum(each.bytes for each in gradients)
    assert len(found.bytes) > 1


def test_nothing_is_no_list() -> None:
    with pytest.raises(ValueError, match="no gradient"):
        best([], linear)
    with pytest.raises(ValueError, match="cap for its first bucket"):
        assigned([1], [])
