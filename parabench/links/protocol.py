"""How a link is measured."""

from __future__ import annotations

from dataclasses import dataclass

from parabench.record import MIB

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
