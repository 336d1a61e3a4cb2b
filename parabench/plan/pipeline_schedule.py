"""The bubble of a pipeline in theory, and the numbers of micro-batches that its schedule allows."""

from __future__ import annotations

import math

# Let all p ranks take f forward and b backward for each of m micro-batches, and let messages take no time. A rank works
# m (f + b) and waits (p - 1)(f + b) while the pipeline fills and drains, a share of (p - 1) / (m + p - 1). This holds
# for GPipe (Huang et al., "GPipe", 2019, section 2.3) and for 1F1B, which only holds fewer activations (Narayanan et
# al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", 2021, section 2.2). With v
# stages on each rank, the wait is 1/v as long. Narayanan et al. give shares x of the work; x / (1 + x) is the share of
# the time.

# Interleaved deals stages out like cards: stage i to rank i mod p. More than two a rank make more messages.
STAGES_PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved": 2}


def bubble(schedule: str, ranks: int, microbatches: int) -> float:
    """Return the share of the time that a rank waits, if all stages take equally long."""
    waits = ranks - 1
    return waits / (STAGES_PER_RANK[schedule] * microbatches + waits)


def fault(schedule: str, ranks: int, microbatches: int) -> str | None:
    """Return the error of this number of micro-batches; None if it is possible.

    1F1B needs one per rank before the first backward. Interleaved divides them into equal rounds with one or more per
    rank.
    """
    if schedule != "gpipe" and microbatches < ranks:
        return f"must be world_size {ranks} or more"
    # Narayanan et al. require multiples of p; torch does not (10 micro-batches for 4 ranks are two rounds of 5).
    if schedule == "interleaved" and microbatches % (microbatches // ranks):
        return f"must divide into {microbatches // ranks} equal rounds, as every multiple of world_size {ranks} does"
    return None


def automatic(schedule: str, ranks: int, batch: int) -> int:
    """Return the number of micro-batches for a batch of `batch` samples; 1, which has a `fault`, if none is possible.

    At least two per rank make a bubble below a third. The smallest such number is chosen, or else the largest.
    """
    small = [each for each in range(1, math.isqrt(batch) + 1) if batch % each == 0]
    divisors = sorted({*small, *(batch // each for each in small)})
    possible = [each for each in divisors if fault(schedule, ranks, each) is None] or [1]
    return next((each for each in possible if each >= 2 * ranks), possible[-1])
