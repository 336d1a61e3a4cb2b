from __future__ import annotations

import pytest

from parabench.errors import UsageError
from parabench.plan.case import Case


def test_an_id_is_stable_and_tells_cases_apart():
    # A written-down id: if this fails, every stored result of the past stops matching.
    assert Case(strategy="ddp", algorithm="ring", bucket_mib=4, world_size=2).id == "ddp-ring-w2-4mib-d96fa40a"
    assert (
        len({Case(seed=s, seq_len=n, precision=d).id for s in (0, 1) for n in (64, 65) for d in ("ieee", "tf32")}) == 8
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"bucket_mib": 0.0}, "bucket_mib is 0.0"),
        ({"precision": "int4"}, "'int4' is unknown; use one of ieee, tf32, bf16-mixed, bf16-true, fp16-mixed"),
        ({"strategy": "rm -rf /"}, "must be a name that"),
        ({"threads": 1 << 32}, "threads is 4294967296"),
        ({"world_size": 4, "ranks_per_node": 3}, "must divide world_size 4"),
    ],
)
def test_bad_values_are_named(values, said):
    with pytest.raises(UsageError, match=said):
        Case(**values)


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"strategy": "single"}, "single, 1 rank"),
        ({"algorithm": "ring", "bucket_mib": 4, "world_size": 2}, "ddp ring 4 MiB, 2 ranks"),
        ({"strategy": "pp", "microbatches": 8, "world_size": 2}, "pp 1f1b microbatches 8, 2 ranks"),
        ({"strategy": "hsdp", "ranks_per_node": 2, "world_size": 4}, "hsdp native ranks_per_node 2, 4 ranks"),
        ({"algorithm": "two_level", "ranks_per_node": 2, "world_size": 4}, "ddp two_level, 4 ranks"),
        (
            {"grad_accumulation": 2, "no_sync": False, "static_graph": True, "world_size": 2},
            "ddp native grad_accumulation 2 no_sync off static_graph, 2 ranks",
        ),
    ],
)
def test_a_label_names_what_sets_a_case_apart(fields, label):
    assert Case(**fields).label == label
