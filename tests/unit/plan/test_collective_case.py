import pytest

import fake_collectives as fake
from parabench.errors import UsageError
from parabench.plan.collective_case import OPS, CollectiveCase, parse_size
from parabench.store.record import MIB


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("64KiB", 65536), ("64K", 65536), ("64kb", 65536), ("1.5 M", 3 * MIB // 2), ("1T", 1 << 40)],
)
def test_sizes_are_read_as_nccl_tests_reads_them(text, count):
    assert parse_size(text) == count


def test_all_reduce_takes_whole_elements():
    case = fake.case(min_bytes=1001, max_bytes=5000, factor=2)
    assert case.sizes == (1000, 2000, 4004)
    assert [case.count(size) for size in case.sizes] == [250, 500, 1001]
    assert case.forms == (True,)


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_parts_are_equal_and_aligned_to_16_bytes(op):
    """nccl-tests 2.x, all_gather.cu: base = (count/nranks) & -(16/eltSize)."""
    case = fake.case(op, world_size=3, min_bytes=1000, max_bytes=1000)
    assert case.sizes == (960,)  # 250 elements: 83 a rank, 80 of them aligned
    assert case.count(960) == 80
    assert case.forms == (False, True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"op": "broadcast", "redop": "sum"}, "broadcast: redop 'sum' is unknown; use one of none"),
        ({"min_bytes": 2, "max_bytes": 2}, "less than all_reduce"),
        ({"dtype": "bfloat16", "world_size": 300}, "too few whole numbers to check sum of 300 ranks"),
        ({"dtype": "bfloat16", "redop": "avg", "world_size": 17}, "too few whole numbers"),
    ],
)
def test_collective_case_refuses_impossible_values(fields, said):
    with pytest.raises(UsageError, match=said):
        CollectiveCase(**({"op": "all_reduce"} | fields))


def test_an_id_is_stable_and_a_default_changes_none():
    plain = CollectiveCase(op="all_reduce")
    assert plain.id == CollectiveCase(op="all_reduce", algorithm="native", factor=4).id
    assert plain.id.startswith("all_reduce-native-w2-")
    ids = {fake.case(op, a, world_size=n).id for op in OPS for a in ("ring", "two_level(ring,tree)") for n in (2, 4)}
    assert len(ids) == 16
