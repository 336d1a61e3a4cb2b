"""NCCL's own algorithms, and the maximum error of NCCL's average.

For `ncclAvg`, NCCL multiplies each rank's contribution by 1/n, rounded to the element type, and adds the products
(src/enqueue.cc, hostToDevRedOp: ncclDevPreMulSum). With the unit roundoff u = 2^-digits:

- 1/n is rounded to (1 + d)/n with |d| <= u. A rank contributes kn, a whole number of the type, so the exact product is
  k(1 + d). The type also has k, so rounding at most doubles the distance to k: the product is within 2uk of k.
- The products are not negative. n - 1 additions in any order multiply the error by at most (1 + u)^(n - 1) (Higham,
  Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2).

In total, the relative error is at most (1 + 2u)(1 + u)^(n - 1) - 1 <= (n + 1)u / (1 - (n + 1)u). With 7 ranks and
float32, it can be two units in the last place. If each product is exactly k, as for powers of two, the sum is exact.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

# {name in NCCL_ALGO: its operations} (NCCL's "Environment variables"; the form function:algorithm needs NCCL 2.24).
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
    """Return the variables that pin NCCL to `name`; {} if `name` is not an algorithm of NCCL.

    Operations without this algorithm keep NCCL's choice.
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
    """Return the largest contribution of a rank so that the error of NCCL's average is below 1/2.

    Contributions are integers. It is a multiple of `ranks`, and at most `largest`.
    """
    if is_exact(ranks, digits, largest):
        return largest
    # error_bound x ranks x k < 1/2, the average being at most ranks x k.
    steps = ranks + 1
    return min(largest, max(0, (1 << digits) - steps - 1) // (2 * ranks * steps))


@cache  # the same numbers are often checked, and fractions are slow
def is_exact(ranks: int, digits: int, largest: int) -> bool:
    """Return whether NCCL's average is exact for all integers up to `largest`, because the products are exact."""
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
