"""Bucket sizes, caps and lists of caps: sentences, figures and exports."""

import json

import pytest

import fake_results as fake
from command_line import parabench
from parabench.analysis.numbers import case_table, numbers
from parabench.analysis.ranking.best import answered
from parabench.analysis.session import select_session, session_data
from parabench.plan.case import Case
from parabench.store.results import load

LONG = tuple(float(cap) for cap in range(1, 10))
TWIN = (1.0, 2.0, 3.5, *LONG[3:])
SIZES = (None, 1.0, 4.0, 25.0, (1.0, 4.0, 25.0), (4.0,), LONG, TWIN)
CASES = [
    fake.case(bucket_mib=size, world_size=n, algorithm=algorithm)
    for size in SIZES
    for n in (2, 4)
    for algorithm in ("native", "ring")
]
SLOWNESS = {size: 1.3 + 0.01 * at for at, size in enumerate(SIZES)} | {(1.0, 4.0, 25.0): 1.0}


def slowness(case):
    return 0.04 * SLOWNESS[case.bucket_mib] * (1.2 if case.algorithm == "ring" else 1) / case.world_size


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "results.db"
    fake.write(path, fake.sweep(CASES, slowness, noise=0.001, repetitions=4))
    return path


@pytest.fixture(scope="module")
def seen(store):
    return session_data(load(store))


def test_list_of_caps_is_text_in_a_table(store, seen):
    assert set(seen.cases["bucket_mib"]) == {
        None, 1.0, 4.0, 25.0, "1+4+25", "4+", "1+2+3+4+5+6+7+8+9", "1+2+3.5+4+5+6+7+8+9"
    }  # fmt: skip
    results = load(store)
    stored = results.launch.drop_duplicates("case_id").set_index("case_id")
    of_list = next(case for case in CASES if case.bucket_mib == (1.0, 4.0, 25.0))
    assert stored["bucket_mib"].isna()[of_list.id]
    assert Case.from_dict(json.loads(stored["case_json"][of_list.id])) == of_list
    assert case_table(numbers(results, select_session(results)))["label"].is_unique


def test_curve_has_single_caps_only(seen):
    works = seen.once(answered)
    sizes = [curve["sizes"] for work in works for curve in work["curves"]]
    assert sizes == [(1.0, 4.0, 25.0, None)] * 4
    assert [member["name"] for member in works[0]["members"]] == ["ddp native 1+4+25 MiB, 4 ranks"]


def test_best_says_it_by_the_axis(store):
    told = parabench("best", store, "--by", "bucket_mib")
    assert told.exit_code == 0, told.output
    assert "1+4+25 " in told.output
    assert "default" in told.output
    answer = json.loads(parabench("best", "--json", "-", store, "--by", "bucket_mib").stdout)
    places = {tuple(place["names"]) for place in answer["tables"]["by"] if place["axes"] == ["bucket_mib"]}
    assert {("1+4+25",), ("4",)} <= places
