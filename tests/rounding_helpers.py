"""How far rounding takes a right training from one device's, from the arithmetic and not from what one CPU gave.

A CPU's kernels add in an order of their own (vector width, threads, instruction set, shape of the batch), so two right
results differ by rounding. Two ways keep that apart from an error of a strategy:

- **float64**: what must compute the same training is trained in float64. A chain of n roundings is off by n u at most
  (N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, section 3.1), with u = 2^-53. Here n is
  below 10^5 (the longest inner products of a step, over its layers, forward and backward, TRAINED_STEPS times), and the
  optimizers of these tests enlarge a difference by less than 100: 10^5 x 100 x 2^-53 = 1.1e-9.
- **bfloat16**, u = 2^-8, where the bound above is useless: roundings are independent, so n of them are off by
  lambda sqrt(n) u at most, except with a probability of 2 exp(-lambda^2 / 2) (N. J. Higham and T. Mary, "A new approach
  to probabilistic rounding error analysis", *SIAM Journal on Scientific Computing* 41, 2019). It holds for whole
  tensors, so these are compared by norms: the largest element of a small tensor is the luck of one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from parabench.plan.case import Case

FLOAT64_BOUND = 1.1e-9

BFLOAT16_ROUNDOFF = 2.0**-8
# 2 exp(-lambda^2 / 2) is 2 %; and the bound takes every rounding for as large as it can be, where they are 0.4 of that
# on average, so that lambda is 7 in truth.
LAMBDA = 3.0
# Autocast's matrices of a block that are rounded one after the other: queries, keys and values; what attention gives;
# its projection; both layers of the feed-forward part and what is between them; and the four weights. As often again
# on the way back.
ROUNDINGS_OF_A_BLOCK = 20
ROUNDINGS_OF_ENDS = 6


def bfloat16_bound(blocks: int) -> float:
    """How far apart two trainings of a decoder in bfloat16 are at most, each tensor relative to its norm."""
    roundings = ROUNDINGS_OF_A_BLOCK * blocks + ROUNDINGS_OF_ENDS
    return LAMBDA * math.sqrt(2 * roundings) * BFLOAT16_ROUNDOFF


def bfloat16_loss_bound(blocks: int, targets: int) -> float:
    """The same of the mean loss over so many targets, whose errors are independent of each other."""
    return bfloat16_bound(blocks) / math.sqrt(targets)


@contextmanager
def wide(case: Case) -> Iterator[None]:
    """Models that are made here for a case of float32 are of float64."""
    before = torch.get_default_dtype()
    if case.precision == "ieee":
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def widened(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What of a batch is no whole number, in the dtype that models are made in."""
    first, second = (each.to(torch.get_default_dtype()) if each.is_floating_point() else each for each in batch)
    return first, second


def differences(mine: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """The norm of each tensor's difference, in units of the expected one's norm."""
    if not mine.keys() <= expected.keys():
        raise AssertionError(f"{sorted(mine)} are not among {sorted(expected)}")
    # A tensor that is zero but for rounding is measured against the typical element of the largest.
    largest = max(_typical(each) for each in expected.values())
    return {
        name: _typical(each - expected[name]) / max(_typical(expected[name]), 1e-3 * largest)
        for name, each in mine.items()
    }


def _typical(values: Tensor) -> float:
    """The root of the mean square."""
    return float(torch.linalg.vector_norm(values.double())) / math.sqrt(max(values.numel(), 1))
