from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parabench.errors import UsageError
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.plan.suite import AXES, parse_axis


def test_an_id_is_stable_and_tells_cases_apart():
    # A written-down id: if this fails, every stored result of the past stops matching.
    assert Case(strategy="ddp", algorithm="ring", bucket_mib=4, world_size=2).id == "ddp-ring-w2-4mib-d96fa40a"
    assert (
        len({Case(seed=s, seq_len=n, precision=d).id for s in (0, 1) for n in (64, 65) for d in ("ieee", "tf32")}) == 8
    )


def test_a_whole_number_of_mib_is_the_same_case_however_it_is_written():
    assert Case(bucket_mib=4).id == Case(bucket_mib=4.0).id


def test_default_bucket_is_not_25():
    assert Case(bucket_mib=None).id != Case(bucket_mib=25).id


@given(
    st.builds(
        Case,
        strategy=st.sampled_from(["single", "ddp", "my.module:thing"]),
        bucket_mib=st.none() | st.floats(0.01, 1000),
        world_size=st.integers(1, 64),
        seed=st.integers(0, 2**32 - 1),
    )
)
def test_a_case_survives_json(case):
    assert Case.from_dict({**case.to_dict(), "from_the_future": 1}) == case


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"world_size": 0}, "world_size is 0"),
        ({"global_batch": -1}, "global_batch is -1"),
        ({"bucket_mib": 0.0}, "bucket_mib is 0.0"),
        ({"bucket_mib": float("nan")}, "bucket_mib is nan"),
        ({"precision": "int4"}, "'int4' is unknown; use one of ieee, tf32, bf16-mixed, bf16-true, fp16-mixed"),
        ({"device": "tpu"}, "'tpu' is unknown"),
        ({"backend": "mpi"}, "'mpi' is unknown"),
        ({"strategy": "rm -rf /"}, "must be a name that"),
        ({"seed": -1}, "seed is -1"),
        ({"world_size": "2"}, "world_size is '2'; it must be a whole number of 1 or more"),
        ({"global_batch": True}, "global_batch is True"),
        ({"bucket_mib": "4"}, "bucket_mib is '4'"),
        ({"model": 3}, "model is 3"),
        ({"data": "text:\udcff"}, "must be a text in UTF-8"),
        ({"threads": 1 << 32}, "threads is 4294967296"),
        ({"world_size": 4, "ranks_per_node": 3}, "must divide world_size 4"),
    ],
)
def test_bad_values_are_named(values, said):
    with pytest.raises(UsageError, match=said):
        Case(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"warmup": 1},
        {"steps": 0},
        {"launches": 0},
        {"deadline_s": 0.0},
        {"deadline_s": float("inf")},
        {"steps": 2.5},
        {"instrumented": -1},
        {"instrumented": 10**11},
    ],
)
def test_a_bad_protocol_is_refused(values):
    with pytest.raises(UsageError, match=next(iter(values)).removesuffix("_s")):
        Protocol(**values)


def test_axes_from_text():
    assert parse_axis("bucket_mib", "1, 4,default") == (1.0, 4.0, None)
    assert parse_axis("world_size", "auto") == ("auto",)
    assert parse_axis("ranks_per_node", "auto,2") == (None, 2)
    assert parse_axis("algorithm", "ring,tree") == ("ring", "tree")


@pytest.mark.parametrize(
    ("name", "text"), [("bucket_mib", "big"), ("world_size", "2,"), ("seed", "1.5"), ("nope", "1")]
)
def test_bad_axes_are_named(name, text):
    with pytest.raises(UsageError, match=name):
        parse_axis(name, text)


def test_every_field_is_an_axis():
    assert "strategy" in AXES
    assert "threads" in AXES


def test_published_parameter_counts():
    """Counted by hand from the published shapes, the vocabulary padded to 50304 (47 more rows than 50257)."""
    published = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
    for name, parameters in published.items():
        assert MODELS[name].parameters == parameters + 47 * MODELS[name].width
    assert 0.9e6 < MODELS["gpt-nano"].parameters < 1.1e6


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
