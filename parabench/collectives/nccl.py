"""NCCL's own algorithms: what they are called here, the environment that pins NCCL to one of them, and how far NCCL's
average may be from the exact one.

NCCL has no division: for `ncclAvg` it multiplies what each rank gives by 1/n, rounded to the element type, and adds up
the products (NCCL, src/enqueue.cc, hostToDevRedOp: ncclDevPreMulSum). With u = 2^-digits, the unit roundoff:

- 1/n rounds to (1 + d)/n with |d| <= u. A rank gives k n, a whole number that the type holds, so the exact product is
  k (1 + d), which is |k d| from k. The nearest number of the type is no farther from the product than k is, so the
  rounded product is at most 2 u k from k.
- The n products are not negative. n - 1 additions, in whatever order, multiply the error by at most (1 + u)^(n - 1)
  (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2).

Together (1 + 2 u) (1 + u)^(n - 1) - 1 <= (1 + u)^(n + 1) - 1 <= (n + 1) u / (1 - (n + 1) u), relative to the average.
One unit in the last place is not enough: with 7 ranks and float32 two occur. Where every product comes out as k, the
sum is one of whole numbers and exact, as for all powers of two.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

# NCCL's own algorithms by the names that NCCL_ALGO takes, and the operations that have them
# (NCCL's "Environment variables", NCCL_ALGO; the function:algorithm form needs NCCL 2.24).
NCCL_PREFIX = "nccl:"
_ALL_REDUCE, _EVERY = ("allreduce",), ("allreduce", "reducescatter", "allgather", "broadcast")
NCCL_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ring": _EVERY,
    "tree": _ALL_REDUCE,
    "collnetdirect": ("allreduce", "reducescatter", "allgather"),
    "collnetchain": _ALL_REDUCE,
    "nvls": ("allreduce", "reducescatter", "allgather"),
    "nvlstree": _ALL_REDUCE,
    "pat": ("reducescatter", "allgather"),
}


def is_nccls(name: str) -> bool:
    """Return whether `name` is an algorithm of NCCL."""
    return name.startswith(NCCL_PREFIX) and name.removeprefix(NCCL_PREFIX) in NCCL_ALGORITHMS


def nccl_environment(name: str) -> dict[str, str]:
    """Return the variables that pin NCCL to `name`. Operations without it keep NCCL's choice.

    {} for every algorithm that is not NCCL's own.
    """
    if not is_nccls(name):
        return {}
    own = name.removeprefix(NCCL_PREFIX)
    return {"NCCL_ALGO": ";".join(f"{op}:{own}" for op in NCCL_ALGORITHMS[own])}


# NCCL computes float(1.0 / n) before it rounds to a shorter type (hostToDevRedOp).
_FLOAT32_DIGITS = 24


def error_bound(ranks: int, digits: int, largest: int) -> float:
    """Return the maximum relative error of NCCL's average over `ranks` for integers with an average up to `largest`.

    `digits` are the bits of the element type's significand.
    """
    if is_exact(ranks, digits, largest):
        return 0.0
    steps = ranks + 1
    return steps / ((1 << digits) - steps)


def most_that_shows(ranks: int, digits: int, largest: int) -> int:
    """Return the largest integer of a rank for which the error of the average is below 1/2.

    It is a multiple of `ranks`, and at most `largest`.
    """
    if is_exact(ranks, digits, largest):
        return largest
    # error_bound x ranks x k < 1/2, the average being at most ranks x k.
    steps = ranks + 1
    return min(largest, max(0, (1 << digits) - steps - 1) // (2 * ranks * steps))


@cache  # a case asks often, and the fractions are slow
def is_exact(ranks: int, digits: int, largest: int) -> bool:
    """Return whether the products are exact for all integers up to `largest`. Then their sums are exact."""
    share = rounded(Fraction(1, ranks), max(digits, _FLOAT32_DIGITS))
    share = rounded(share, digits)
    return all(rounded(k * ranks * share, digits) == k for k in range(1, largest + 1))


def rounded(value: Fraction, digits: int) -> Fraction:
    """Return `value` > 0 rounded to `digits` significant bits, ties to even (IEEE 754), for every exponent."""
    # 2^(exponent - 1) <= value < 2^(exponent + 1): one of the two units below is correct.
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    unit = Fraction(2) ** (exponent - digits + 1)
    if value / unit < 2 ** (digits - 1):
        unit /= 2
    return round(value / unit) * unit
