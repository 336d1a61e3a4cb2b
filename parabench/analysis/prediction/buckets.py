"""Which gradients DDP reduces together, and the list of buckets with which the last of them is reduced first.

DDP puts gradients into a bucket until it holds its cap or more, then into the next (`compute_bucket_assignment_by_size`
in torch/csrc/distributed/c10d/reducer.cpp); after the first step in the order in which gradients became ready. A cap
for each bucket is what DDP takes as `bucket_cap_mb_list`, the last for all that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from parabench.analysis.stats.quantiles import Numbers
from parabench.store.record import MIB

# How many seconds a collective of so many bytes takes, for each of an array of sizes.
SecondsOf = Callable[[Numbers], Numbers]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient of so many bytes, ready so many seconds after backward began."""

    bytes: int
    ready_s: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """How many bytes each bucket holds, in the order in which they are reduced, and when the last of them would be, in
    seconds after backward began."""

    bytes: tuple[int, ...]
    reduced_s: float

    @property
    def caps_mib(self) -> tuple[float, ...]:
        """What DDP is to be given as `bucket_cap_mb_list`; exact, because a MiB is a power of two of bytes."""
        return tuple(size / MIB for size in self.bytes)


def assigned(sizes: Sequence[int], caps: Sequence[int]) -> list[list[int]]:
    """The places of gradients of these `sizes` in bytes by the bucket that DDP puts them into, with a cap in bytes for
    each bucket, the last for all that follow. Raises ValueError for no cap."""
    if not caps:
        raise ValueError("DDP needs a cap for its first bucket")
    buckets: list[list[int]] = []
    held = 0
    for at, size in enumerate(sizes):
        if not held:
            buckets.append([])
        buckets[-1].append(at)
        held += size
        if held >= caps[min(len(buckets), len(caps)) - 1]:
            held = 0
    return buckets


def reduced(gradients: Sequence[Gradient], caps: Sequence[int], seconds: SecondsOf) -> Buckets:
    """The buckets that DDP makes of `gradients`, by readiness, with these caps in bytes, reduced one after another."""
    groups = assigned([each.bytes for each in gradients], caps)
    sizes = [sum(gradients[at].bytes for at in group) for group in groups]
    end = 0.0
    for group, took in zip(groups, seconds(np.array(sizes, dtype=float)).tolist(), strict=True):
        end = max(end, max(gradients[at].ready_s for at in group)) + took
    return Buckets(tuple(sizes), end)


def best(gradients: Sequence[Gradient], seconds: SecondsOf) -> Buckets:
    """The buckets with which the last is reduced first, of all ways to cut `gradients`, by readiness, into buckets.

    Dynamic programming: where the first gradients are reduced at time e, those up to the next cut are at max(e, the
    last of them is ready) + what their bytes take, which no later e makes earlier. So of the ways to reduce the first
    gradients only the earliest counts, and as many steps as pairs of gradients find the best of all (the idea is that
    of merged gradients: S. Shi, X. Chu and B. Li, "MG-WFBP: Efficient data communication for distributed synchronous
    SGD algorithms", INFOCOM 2019). Raises ValueError for no gradient.
    """
    if not gradients:
        raise ValueError("there is no gradient to reduce")
    before = np.concatenate([[0.0], np.cumsum([float(each.bytes) for each in gradients])])
    ends, cuts = np.zeros(len(gradients) + 1), np.zeros(len(gradients) + 1, dtype=np.int64)
    ready = 0.0
    for at, gradient in enumerate(gradients, 1):
        ready = max(ready, gradient.ready_s)
        found = np.maximum(ends[:at], ready) + seconds(before[at] - before[:at])
        cuts[at] = int(np.argmin(found))
        ends[at] = found[cuts[at]]
    sizes: list[int] = []
    at = len(gradients)
    while at:
        sizes.append(int(before[at] - before[cuts[at]]))
        at = int(cuts[at])
    return Buckets(tuple(reversed(sizes)), float(ends[-1]))
