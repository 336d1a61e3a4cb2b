"""What a store keeps in brief of its samples: the same as all of them say."""

from __future__ import annotations

import sqlite3

import numpy as np
import pandas as pd
import pytest

import fake_results as fake
from parabench.analysis.numbers import numbers
from parabench.analysis.session import select_session
from parabench.metrics import STEP_PARTS
from parabench.store.record import Sample
from parabench.store.results import load

KEYS = ["launch_id", "metric", "phase", "rank"]


@pytest.fixture
def store(tmp_path):
    """Several strategies, a failed case, ranks that differ, and numbers that are unknown."""
    random = np.random.default_rng(3)
    path = tmp_path / "r.db"
    launches = []
    for block in range(2):
        for case in (fake.case(world_size=3), fake.case(strategy="pp", microbatches=4), fake.case(strategy="fsdp")):
            one = fake.launch(case, random.uniform(0.03, 0.05, 12), block=block)
            fake.tell(one, staleness_mean=1.5, parameter_bytes=[1.0 * rank for rank in range(case.world_size)])
            one.samples = [
                sample._replace(value=sample.value * random.uniform(0.9, 1.1)) if sample.value else sample
                for sample in one.samples
            ]
            launches.append(one)
    launches[0].samples[40] = launches[0].samples[40]._replace(value=None)
    launches[1].samples.append(Sample(1, None, "instrument", "peak_rss_bytes", 1e12))
    launches[1].samples.append(Sample(0, None, "measure", "peak_rss_bytes", float("nan")))
    launches[2].samples = [each._replace(value=None) if each.step == 5 and each.rank == 1 else each
                           for each in launches[2].samples]  # fmt: skip
    launches.append(fake.launch(fake.case(strategy="tp"), status=fake.Status.OOM))
    fake.write(path, launches)
    return path


def plainly(samples: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The same from all samples, one launch, step or rank at a time."""
    timed = samples[(samples["phase"] == "measure") & samples["step"].notna()]
    steps = [
        (launch_id, int(step), float(own["value"].max(skipna=False)))
        for (launch_id, step), own in timed[timed["metric"] == "step_s"].groupby(["launch_id", "step"])
    ]
    medians = [
        (*key, float(own["value"].median()))
        for key, own in timed[timed["metric"].isin(("step_s", *STEP_PARTS))].groupby(KEYS)
    ]
    whole = samples[samples["step"].isna()][[*KEYS, "value"]]
    return {
        "steps": pd.DataFrame(steps, columns=["launch_id", "step", "step_s"]),
        "medians": pd.DataFrame(medians, columns=[*KEYS, "value"]),
        "whole": whole,
    }


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    columns = [name for name in ("launch_id", "step", *KEYS[1:], "step_s", "value") if name in table]
    plain = table[columns].astype({name: str for name in ("metric", "phase") if name in table})
    return plain.sort_values(columns).reset_index(drop=True)


def test_digests_say_what_all_samples_say(store):
    results = load(store)
    for name, expected in plainly(results.sample).items():
        pd.testing.assert_frame_equal(ordered(getattr(results, name)), ordered(expected), check_exact=True)
    assert results.steps["step_s"].isna().any()
    assert results.whole["value"].isna().any()


def test_reading_a_session_takes_no_look_at_all_samples(store):
    results = load(store)
    numbers(results, select_session(results))
    assert not {"sample", "collective", "span", "host_sample"} & set(vars(results))


def test_instrumented_samples_are_those_of_their_phase(tmp_path):
    one = fake.instrumented(fake.launch(fake.case()), 22, rank=1)
    results = fake.write(tmp_path / "r.db", [fake.launch(fake.case(strategy="fsdp")), one])
    expected = results.sample[results.sample["phase"] == "instrument"].reset_index(drop=True)
    pd.testing.assert_frame_equal(results.instrumented, expected, check_dtype=False)
    with sqlite3.connect(results.path) as db:
        plan = db.execute(
            "EXPLAIN QUERY PLAN SELECT * FROM sample WHERE (phase = 'instrument') ORDER BY launch_id, rowid"
        ).fetchall()
    db.close()
    assert [row[3] for row in plan] == ["SCAN sample USING INDEX sample_instrumented"]
