"""NCCL's averages: correct averages are never counted as wrong, and wrong averages always are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fake_collectives import case
from parabench.errors import UsageError
from parabench.plan.collective_case import TYPES
from parabench.workloads.collective_buffers import Truth, count_wrong

CPU = torch.device("cpu")
COUNT = 1024


def in_a_row(parts: list[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def pairwise(parts: list[Tensor]) -> Tensor:
    while len(parts) > 1:
        parts = [parts[at] + parts[at + 1] if at + 1 < len(parts) else parts[at] for at in range(0, len(parts), 2)]
    return parts[0]


def smallest_first(parts: list[Tensor]) -> Tensor:
    return in_a_row(list(torch.stack(parts).sort(0).values))


ORDERS: tuple[Callable[[list[Tensor]], Tensor], ...] = (in_a_row, pairwise, smallest_first)


def products(values: list[Tensor], ranks: int) -> list[Tensor]:
    """Return the products that NCCL adds: float(1.0 / n), in the element type, times each value (hostToDevRedOp)."""
    dtype = values[0].dtype
    share = torch.tensor(1.0 / ranks, dtype=torch.float64)
    share = (share if dtype == torch.float64 else share.float()).to(dtype)
    return [value * share for value in values]


@pytest.mark.parametrize("dtype", TYPES)
def test_nccl_average_is_checked_for_up_to_64_ranks(dtype):
    checked = 0
    for ranks in range(2, 65):
        try:
            of = case(dtype=dtype, redop="avg", world_size=ranks, device="cuda", backend="nccl")
        except UsageError:  # the dtype has too few whole numbers to check an average of so many ranks
            continue
        truth, off = Truth(of, CPU), of.relative_error()
        like = truth.empty(COUNT)
        expected = truth.reduced(like)
        parts = products([truth.of(rank, like) for rank in range(ranks)], ranks)
        for order in ORDERS:
            assert count_wrong(order(parts), expected, off) == 0, (ranks, order)
        # Without the last rank, and with the first one twice: wrong wherever that rank had something.
        missing, twice = order(parts[:-1]), order([*parts, parts[0]])
        assert count_wrong(missing, expected, off) == int(torch.count_nonzero(parts[-1])), ranks
        assert count_wrong(twice, expected, off) == int(torch.count_nonzero(parts[0])), ranks
        assert count_wrong(expected + 1, expected, off) == count_wrong(expected - 1, expected, off) == COUNT
        checked += 1
    assert checked >= {"float32": 63, "float64": 63, "float16": 42, "bfloat16": 15}[dtype]


def test_error_bound_is_only_for_averages_of_nccl():
    def room(**fields: object) -> float:
        given: dict[str, object] = {"world_size": 7, "redop": "avg", "device": "cuda", "backend": "nccl"}
        return case(**(given | fields)).relative_error()

    assert room() == room(algorithm="nccl:ring") == pytest.approx(8 * 2**-24, rel=1e-6)
    # A sum is exact, gloo and ours divide the sum, and by a power of two nothing rounds.
    assert room(redop="sum") == room(device="cpu", backend="gloo") == room(algorithm="ring") == room(world_size=8) == 0
    with pytest.raises(UsageError, match="dtype float16 holds too few whole numbers to check avg of 41 ranks"):
        case(world_size=41, redop="avg", dtype="float16", device="cuda", backend="nccl")
    assert case(world_size=41, redop="avg", dtype="float16").relative_error() == 0
