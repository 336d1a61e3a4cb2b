import json

import pytest

from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.suite import parse_axis


def test_an_id_is_stable_and_tells_cases_apart():
    # A written-down id: if this fails, every stored result of the past stops matching.
    assert Case(strategy="ddp", algorithm="ring", bucket_mib=4, world_size=2).id == "ddp-ring-w2-4mib-d96fa40a"
    assert (
        len({Case(seed=s, seq_len=n, precision=d).id for s in (0, 1) for n in (64, 65) for d in ("ieee", "tf32")}) == 8
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"strategy": "rm -rf /"}, "must be a name that"),
        ({"threads": 1 << 32}, "threads is 4294967296"),
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


# -- lists of bucket caps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "text", "values"),
    [
        ("bucket_mib", "4,1+4+25", (4.0, (1.0, 4.0, 25.0))),
        ("bucket_mib", "default, 0.25 + 1e+1 ,4+", (None, (0.25, 10.0), (4.0,))),
        ("bucket_mib", "+4,1e+2", (4.0, 100.0)),
        ("world_size", "auto", ("auto",)),
        ("ranks_per_node", "auto,2", (None, 2)),
        ("algorithm", "ring,tree", ("ring", "tree")),
    ],
)
def test_axes_are_read_from_text(axis, text, values):
    assert parse_axis(axis, text) == values


def test_a_case_holds_a_tuple_and_comes_back_from_json():
    case = Case(bucket_mib=[1, 4.5], world_size=2)
    assert case.bucket_mib == (1.0, 4.5)
    assert {type(cap) for cap in case.bucket_mib} == {float}
    assert (case.bucket_cap, case.bucket_caps) == (None, (1.0, 4.5))
    again = Case.from_dict(json.loads(json.dumps(case.to_dict())))
    assert (again, hash(again), again.id) == (case, hash(case), case.id)
    (read,) = parse_axis("bucket_mib", case.cells()["bucket_mib"])
    assert read == case.bucket_mib


@pytest.mark.parametrize(
    ("caps", "label", "slug"),
    [
        ((1, 4, 25), "ddp native 1+4+25 MiB, 2 ranks", "1_4_25mib"),
        ((0.5,), "ddp native 0.5+ MiB, 2 ranks", "0.5_mib"),
        ((*range(1, 9), 25), "ddp native 9caps 1 to 25 MiB, 2 ranks", "9caps_1_to_25mib"),
        ((1 << 20,), "ddp native 1.04858e+06+ MiB, 2 ranks", "1.04858e06_mib"),
    ],
)
def test_labels_and_ids_stay_short(caps, label, slug):
    case = Case(bucket_mib=caps, world_size=2)
    assert case.label == label
    assert case.id == f"ddp-native-w2-{slug}-{case.digest}"


@pytest.mark.parametrize("caps", [(), (1, 0), (1, None), (1, (2, 3)), ("4",)])
def test_every_cap_is_checked(caps):
    with pytest.raises(UsageError) as error:
        Case(bucket_mib=caps)
    assert str(error.value) == f"bucket_mib is {caps}; it must be a number above 0 and at most 1048576, or default"
