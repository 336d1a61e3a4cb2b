"""Strategies over gloo on CUDA devices: no CUDA pointer goes to an operation that reads it on the host."""

import pytest

from gloo_helpers import check_full_tensor, check_operators
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.validate import check, check_fit
from parabench.strategies import STRATEGIES
from ranks_helpers import complaints_of_ranks, one_by_one
from trained_helpers import cpu_case

RANKS = 4


def case_of(strategy, **fields):
    return cpu_case(strategy=strategy, model="gpt-nano", world_size=RANKS, global_batch=RANKS, **fields)


def runs_on_gloo_with_cuda(case: Case) -> bool:
    try:
        check(case.replace(device="cuda"))
        check_fit(case)
    except UsageError:
        return False
    entry = STRATEGIES[case.strategy]
    return not (entry.one_rank_only or entry.one_process or entry.package)


@pytest.mark.slow  # `make gpu` trains them over gloo on a GPU
def test_operators_of_every_strategy_take_cuda_tensors(tmp_path):
    cases = [case for name in STRATEGIES if runs_on_gloo_with_cuda(case := case_of(name))]
    assert {case.strategy for case in cases} == {
        "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "tp_ddp", "tp_fsdp", "parameter_server",
        "parameter_server_async", "local_only",
    }  # fmt: skip
    checks = [(check_operators, (cases, tmp_path)), (check_full_tensor, (cases, tmp_path))]
    assert complaints_of_ranks(one_by_one, cases[0], tmp_path, checks) == [[]] * RANKS
