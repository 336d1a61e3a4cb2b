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
    """Whether `name` is one of NCCL's own algorithms."""
    return name.startswith(NCCL_PREFIX) and name.removeprefix(NCCL_PREFIX) in NCCL_ALGORITHMS


def nccl_environment(name: str) -> dict[str, str]:
    """What pins NCCL to `name` in a rank's environment; operations that don't have it keep NCCL's choice.

    {} for every algorithm that is not NCCL's own.
    """
    if not is_nccls(name):
        return {}
    own = name.removeprefix(NCCL_PREFIX)
    return {"NCCL_ALGO": ";".join(f"{op}:{own}" for op in NCCL_ALGORITHMS[own])}


# float(1.0 / n) comes before it is rounded to a shorter type (hostToDevRedOp).
_FLOAT32_DIGITS = 24


def error_bound(ranks: int, digits: int, largest: int) -> float:
    """How far NCCL's average over `ranks` may be from the exact one, relative to it, where each gives whole numbers of
    which the average is `largest` at most. `digits` are the bits of the element type's significand. 0: it is exact."""
    if is_exact(ranks, digits, largest):
        return 0.0
    steps = ranks + 1
    return steps / ((1 << digits) - steps)


def most_that_shows(ranks: int, digits: int, largest: int) -> int:
    """The largest whole number a rank may hold, in units of `ranks` and at most `largest`, so that averages that differ
    by 1 cannot be taken for one another: the error is below 1/2."""
    if is_exact(ranks, digits, largest):
        return largest
    # error_bound x ranks x k < 1/2, the average being at most ranks x k.
    steps = ranks + 1
    return min(largest, max(0, (1 << digits) - steps - 1) // (2 * ranks * steps))


@cache  # a case asks often, and the fractions are slow
def is_exact(ranks: int, digits: int, largest: int) -> bool:
    """Whether the products are right for all whole numbers up to `largest`; their sums are exact then."""
    share = rounded(Fraction(1, ranks), max(digits, _FLOAT32_DIGITS))
    share = rounded(share, digits)
    return all(rounded(k * ranks * share, digits) == k for k in range(1, largest + 1))


def rounded(value: Fraction, digits: int) -> Fraction:
    """`value`, above 0, to `digits` significant bits, to the nearest and of two the even (IEEE 754), whatever the
    exponent."""
    # 2^(exponent - 1) <= value < 2^(exponent + 1): one of the two units below is right.
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    unit = Fraction(2) ** (exponent - digits + 1)
    if value / unit < 2 ** (digits - 1):
        unit /= 2
    return round(value / unit) * unit
