"""How a link is measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from parabench.store.record import MIB

# What makes one latency of many, by the kind of device: the median, or the 10th percentile where ranks share cores with
# others. There the scheduler's turns (2 ms) came into the median of most runs and seldom into the 10th percentile.
QUANTILE = {"cpu": 0.1, "cuda": 0.5}

# The smallest message, and what tells a partner how many bytes come next.
WORD_BYTES = 8

# Why a bandwidth is unknown where all ranks came to their end: to measure again changes nothing.
TOO_QUICK = "the largest transfer took less than two round trips"

# What a round takes, from and to: two directions of `LinkProtocol`, each of doublings and six transfers.
ROUND_S = (2.0, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProtocol:
    """`round_trips` of the smallest message for the latency, after `warmup` that are not counted. For the bandwidth the
    size is doubled from `least_bytes` until one transfer takes `transfer_s`, `most_bytes` at most; then up to
    `transfers` of it, as long as they took no more than `most_s` together.

    A tenth of a second is a thousand times what a scheduler's or TCP's hesitation costs, and the whole of a direction
    takes about a second.
    """

    warmup: int = 10
    round_trips: int = 100
    least_bytes: int = MIB
    most_bytes: int = 256 * MIB
    transfer_s: float = 0.1
    transfers: int = 6
    most_s: float = 3.0


def rate(size: int, took: Sequence[float], latency_s: float) -> float:
    """Bytes a second of a link over which transfers of `size` bytes took so many seconds: the median of the best third;
    NaN where a round trip is more than half of it, so that what is left says little.

    What disturbs a transfer (another process, other traffic) only makes it longer, so the best ones tell of the link;
    not the very best alone, because a shaped link lets some bytes through at once after a pause.
    """
    best = sorted(took)[: max(1, len(took) // 3)]
    typical = statistics.median(best)
    return size / (typical - 2 * latency_s) if 2 * latency_s < typical / 2 else math.nan
