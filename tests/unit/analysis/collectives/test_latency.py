"""The fitted latency and bandwidth, on times with known constants."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from parabench.analysis.collectives.bus import fitted

SIZES = np.array([2**16 * 4**i for i in range(6)])
LATENCY_S, PER_BYTE_S = 1e-4, 2e-10
# all_reduce of 4 ranks: busbw is 1.5 times algbw.
BUSBW = 1.5 / PER_BYTE_S / 1e9


def times(launches, *, of_launch=0.0, noise=0.0, seed=0, sizes=SIZES):
    """Return times of launches that each have a separate effect on all of their sizes."""
    random = np.random.default_rng(seed)
    parts = []
    for launch in range(launches):
        seconds = (LATENCY_S + PER_BYTE_S * sizes) * np.exp(of_launch * random.normal())
        seconds = seconds * np.exp(noise * random.normal(size=len(sizes)))
        parts.append(pd.DataFrame({"launch_id": launch, "bytes": sizes, "call_s": seconds}))
    return pd.concat(parts).assign(case="ring-1", label="ring", op="all_reduce", world_size=4)


def test_fitted_returns_the_constants_of_exact_times():
    (row,) = fitted(times(3)).to_dict("records")
    assert (row["case_id"], row["label"]) == ("ring-1", "ring")
    assert row["latency_s"] == pytest.approx(LATENCY_S)
    assert row["busbw"] == pytest.approx(BUSBW)
    assert row["latency_s_low"] == pytest.approx(row["latency_s_high"])
    assert row["error"] < 1e-9


@pytest.mark.parametrize(("launches", "sizes", "rows"), [(1, SIZES, 1), (3, SIZES[:1], 0)])
def test_fitted_has_no_interval_when_data_are_few(launches, sizes, rows):
    found = fitted(times(launches, sizes=sizes))
    assert len(found) == rows
    assert found[["latency_s_low", "busbw_high"]].isna().all(axis=None)


def test_intervals_contain_the_truth_when_launches_differ():
    rows = pd.concat([fitted(times(3, of_launch=0.05, noise=0.02, seed=seed)) for seed in range(300)])
    for name, truth in (("latency_s", LATENCY_S), ("busbw", BUSBW)):
        held = (rows[f"{name}_low"] <= truth) & (truth <= rows[f"{name}_high"])
        assert 0.92 < held.mean() < 0.98, name
