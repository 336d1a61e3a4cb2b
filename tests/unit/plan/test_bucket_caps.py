"""A list of caps for DDP's buckets, as one value of `bucket_mib`."""

from __future__ import annotations

import json

import pytest

from parabench.errors import UsageError
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan, make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, parse_axis, sweep
from parabench.plan.validate import missing_requirement

LONG = (*range(1, 9), 25)


def plan(machine, *sweeps, overrides=None):
    suite = Suite(name="s", path=None, question="q", sweeps=sweeps, protocol=Protocol())
    return make_plan(suite, overrides or {}, suite.protocol, machine, 0)


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
        (LONG, "ddp native 9caps 1 to 25 MiB, 2 ranks", "9caps_1_to_25mib"),
        ((1 << 20,), "ddp native 1.04858e+06+ MiB, 2 ranks", "1.04858e06_mib"),
    ],
)
def test_labels_and_ids_stay_short(caps, label, slug):
    case = Case(bucket_mib=caps, world_size=2)
    assert case.label == label
    assert case.id == f"ddp-native-w2-{slug}-{case.digest}"


@pytest.mark.parametrize("caps", [(), (1, 0), (1, 1 << 21), (1, None), (1, (2, 3)), ("4",)])
def test_every_cap_is_checked(caps):
    with pytest.raises(UsageError) as error:
        Case(bucket_mib=caps)
    assert str(error.value) == f"bucket_mib is {caps}; it must be a number above 0 and at most 1048576, or default"


def test_a_suite_lists_them_among_sizes(machine):
    made = plan(machine, sweep(strategy=("ddp", "zero1"), bucket_mib=(None, 4, (1, 4, 25)), world_size=2))
    assert [case.bucket_mib for case in made.cases] == [None, 4.0, (1.0, 4.0, 25.0)] * 2
    assert Plan.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    ("fields", "skipped"),
    [
        ({"bucket_mib": 0.5}, True),
        ({"bucket_mib": (0.25, 0.5)}, True),
        ({"bucket_mib": 0.5, "strategy": "fsdp"}, False),
        ({"bucket_mib": 0.5, "compile": False}, False),
        ({"bucket_mib": 1}, False),
    ],
)
def test_compile_is_skipped_when_ddps_caps_are_too_small(fields, skipped, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    case = Case(**{"world_size": 2, "strategy": "ddp", "compile": True, "device": "cpu", **fields})
    why = missing_requirement(case, Machine(cores=2))
    assert (why is not None) is skipped
    if skipped:
        assert "and the largest cap is 0.5 MiB; raise bucket_mib, or leave compile off" in why
