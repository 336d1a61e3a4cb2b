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


def best(gradients: Sequence[Gradient], seconds: SecondsOf, slack: float = 0.0) -> Buckets:
    """The buckets with which the last is reduced first, of all ways to cut `gradients`, by readiness, into buckets; of
    those that need no more than `slack`, a fraction, more than that the ones of the fewest buckets.

    Dynamic programming: where the first gradients are reduced at time e, those up to the next cut are at max(e, the
    last of them is ready) + what their bytes take, which no later e makes earlier. So of the ways to reduce the first
    gradients in so many buckets only the earliest counts (the idea is that of merged gradients: S. Shi, X. Chu and
    B. Li, "MG-WFBP: Efficient data communication for distributed synchronous SGD algorithms", INFOCOM 2019). Raises
    ValueError for no gradient.
    """
    if not gradients:
        raise ValueError("there is no gradient to reduce")
    n = len(gradients)
    before = np.concatenate([[0.0], np.cumsum([float(each.bytes) for each in gradients])])
    ready = np.maximum.accumulate([each.ready_s for each in gradients])
    # Row `at` is of buckets that end with gradient `at`: what they take by the gradient before their first.
    takes = [seconds(before[at] - before[:at]) for at in range(1, n + 1)]
    ends, cuts = np.full(n + 1, np.inf), list[list[int]]()
    ends[0] = 0.0
    found: list[Numbers] = []
    for _ in range(n):
        last, ends, cut = ends, np.full(n + 1, np.inf), [0] * (n + 1)
        for at in range(1, n + 1):
            reached = np.maximum(last[:at], ready[at - 1]) + takes[at - 1]
            cut[at] = int(np.argmin(reached))
            ends[at] = reached[cut[at]]
        cuts.append(cut)
        found.append(ends)
        # One bucket more is no help where even the earliest of all ways, which waits for nothing, is not earlier.
        if len(found) > 1 and all(found[-1][1:] >= np.minimum.reduce(found[:-1])[1:]):
            break
    soonest = min(float(each[n]) for each in found)
    count = next(k for k, each in enumerate(found) if each[n] <= soonest * (1 + slack))
    sizes: list[int] = []
    at, end = n, float(found[count][n])
    for cut in reversed(cuts[: count + 1]):
        sizes.append(int(before[at] - before[cut[at]]))
        at = cut[at]
    return Buckets(tuple(reversed(sizes)), end)
