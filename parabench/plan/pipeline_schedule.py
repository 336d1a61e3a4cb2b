"""The bubble of a pipeline in theory, and the numbers of micro-batches that its schedule allows.

Let a rank's layers take f forward and b backward for a micro-batch, the same on all p ranks, and messages nothing.
Then m micro-batches are m (f + b) of work. Filled stage by stage and drained the same way, a rank waits for p - 1
others both times, (p - 1)(f + b): of the whole that is (p - 1) / (m + p - 1), for GPipe (Huang et al., "GPipe", 2019,
section 2.3) as for 1F1B, which only orders the work so that fewer activations are held (Narayanan et al., "Efficient
large-scale language model training on GPU clusters using Megatron-LM", 2021, section 2.2). With v stages on each rank a
stage is 1/v as long, and so is the wait: (p - 1)(f + b) / v, of the whole (p - 1) / (v m + p - 1). Narayanan et al.
give both as shares of the work, x; of the whole that is x / (1 + x).
"""

from __future__ import annotations

import math

from parabench.plan.case import Case
from parabench.strategies import entry_of

# Interleaved deals stages out like cards: stage i to rank i mod p. More than two a rank make more messages.
STAGES_PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved": 2}


def bubble(schedule: str, ranks: int, microbatches: int) -> float:
    """Return the share of the time in which a rank waits, if all stages take equally long."""
    waits = ranks - 1
    return waits / (STAGES_PER_RANK[schedule] * microbatches + waits)


def stages_of(case: Case) -> int:
    """Return the number of stages of the case's pipeline."""
    per_rank = STAGES_PER_RANK[case.schedule] if "schedule" in entry_of(case.strategy).axes else 1
    return case.world_size * per_rank


def fault(schedule: str, ranks: int, microbatches: int) -> str | None:
    """Return what is wrong with this number of micro-batches; None if it is possible.

    1F1B needs one per rank before the first backward. Interleaved divides them into equal rounds with one or more per
    rank. Narayanan et al. require multiples of p; torch does not (10 micro-batches for 4 ranks are two rounds of 5).
    With fewer than p, torch makes one round, but its bubble is larger than the formula's.
    """
    if schedule != "gpipe" and microbatches < ranks:
        return f"must be world_size {ranks} or more"
    if schedule == "interleaved" and microbatches % (microbatches // ranks):
        return f"must divide into {microbatches // ranks} equal rounds, as every multiple of world_size {ranks} does"
    return None


def automatic(schedule: str, ranks: int, batch: int) -> int:
    """Return the number of micro-batches for a batch of `batch` samples.

    This is the smallest possible number of at least twice the ranks, which makes a bubble below a third, or else the
    largest possible one. If none is possible, the result is 1, which has a `fault`.
    """
    small = [each for each in range(1, math.isqrt(batch) + 1) if batch % each == 0]
    divisors = sorted({*small, *(batch // each for each in small)})
    possible = [each for each in divisors if fault(schedule, ranks, each) is None] or [1]
    return next((each for each in possible if each >= 2 * ranks), possible[-1])
