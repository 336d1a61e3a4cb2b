import itertools

import numpy as np
import pandas as pd
import pytest

import fake_collectives as fake
from parabench.analysis.collectives.bus import CALL_COLUMNS, bus_table, fitted, measured
from parabench.analysis.collectives.crossover import answer, fastest
from parabench.analysis.numbers import numbers
from parabench.analysis.session import select_session, session_data
from parabench.collectives import LEVELS
from parabench.store.record import MIB

SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22)


def table(results):
    sizes = measured(numbers(results, select_session(results)))
    return sizes, bus_table(sizes)


def test_call_has_the_time_of_its_slowest_rank(tmp_path):
    results = fake.write(tmp_path / "r.db", [fake.launch(fake.case(world_size=4), lambda size: size * 1e-9)])
    sizes, rows = table(results)
    assert list(sizes["bytes"]) == list(SIZES)
    assert list(sizes["p50_s"]) == pytest.approx([size * 1e-9 for size in SIZES])
    assert list(sizes["calls"]) == [4] * 4
    assert list(rows["algbw"]) == pytest.approx([1.0] * 4)
    assert list(rows["busbw"]) == pytest.approx([1.5] * 4)
    assert rows["spread"].isna().all()


def test_quantiles_are_over_calls_and_spread_over_launches(tmp_path):
    launches = [
        fake.launch(fake.case(max_bytes=1 << 16), lambda size, f=f: f, repetition=b) for b, f in enumerate((1e-3, 2e-3))
    ]
    for launch in launches:
        launch.collectives = [
            call._replace(duration_s=call.duration_s * (1 + call.step)) for call in launch.collectives
        ]
    sizes, rows = table(fake.write(tmp_path / "r.db", launches))
    assert sizes.loc[0, "p99_s"] == pytest.approx(np.quantile([1e-3, 2e-3, 3e-3, 4e-3], 0.99))
    assert rows.loc[0, "spread"] == pytest.approx(1.0)
    assert rows.loc[0, "p50_s"] == pytest.approx(2.5e-3 * 2**0.5)


def test_throughput_mode_has_the_mean_of_its_calls(tmp_path):
    """nccl-tests: all calls' time by their number. Four batches of 8 calls, of 1, 2, 3 and 4 ms per call."""
    launch = fake.launch(fake.case(max_bytes=1 << 16), lambda size: 1e-3, protocol=fake.THROUGHPUT)
    launch.collectives = [call._replace(duration_s=call.duration_s * (1 + call.step)) for call in launch.collectives]
    results = fake.write(tmp_path / "r.db", [launch], protocol=fake.THROUGHPUT)
    sizes, rows = table(results)
    (row,) = sizes.to_dict("records")
    assert (row["timing"], row["statistic"], row["calls"], row["batches"]) == ("throughput", "mean", 32, 4)
    assert row["call_s"] == pytest.approx(2.5e-3)
    assert row["p50_s"] == pytest.approx(2.5e-3)
    assert row["p99_s"] == pytest.approx(np.quantile([1e-3, 2e-3, 3e-3, 4e-3], 0.99))
    assert rows.loc[0, "call_s"] == pytest.approx(2.5e-3)
    (sentence,) = answer(session_data(results)).sentences
    assert sentence.endswith("Timed: calls back to back, as nccl-tests does.")


def crossing(case, size):
    """native: little latency, few GB/s; ring the other way round. They cross at 400 kB."""
    return 1e-4 + size * 1e-9 if case.algorithm == "native" else 3e-4 + size * 0.5e-9


def cases(*algorithms, **fields):
    return [fake.case(algorithm=name, **fields) for name in algorithms]


def test_crossover_is_between_two_certain_sizes(tmp_path):
    results = fake.write(tmp_path / "r.db", fake.sweep(cases("native", "ring"), crossing, noise=0.005, repetitions=4))
    found = answer(session_data(results))
    ranges = found.tables["ranges"][["first_bytes", "last_bytes", "algorithms"]]
    assert ranges.values.tolist() == [[SIZES[0], SIZES[1], ("native",)], [SIZES[2], SIZES[3], ("ring",)]]
    assert found.tables["changes"][["above_bytes", "below_bytes"]].values.tolist() == [[SIZES[1], SIZES[2]]]
    assert "The best changes between 256 KiB and 1 MiB." in found.sentences[0]
    (operation,) = found.tables["operations"].to_dict("records")
    assert operation["peak_algorithm"] == "ring"
    peak = 4 * MIB / crossing(fake.case(algorithm="ring"), 4 * MIB) / 1e9
    assert operation["peak"] == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize(
    ("names", "repetitions"), [(("native", "ring"), 3), pytest.param(LEVELS, 3, marks=pytest.mark.slow)]
)
def test_false_crossovers_are_rare(names, repetitions):
    """5% at each of six sizes would be 26% of the sessions, 21 of 80."""
    random, sizes = np.random.default_rng(3), [2**16 * 4**i for i in range(6)]
    columns = dict.fromkeys(CALL_COLUMNS) | {"op": "all_reduce", "world_size": 2, "nodes": 1, "device": "cpu"}
    columns |= {"backend": "gloo", "threads": 1, "dtype": "float32", "redop": "sum", "status": "ok", "counted": True}
    columns |= {"in_place": True, "source": "", "timing": "latency", "statistic": "median", "count": 1}
    columns |= {"calls": 20, "p50_s": 1e-3, "p95_s": 1e-3, "p99_s": 1e-3, "n_wrong": 0.0}
    claimed = 0
    for _ in range(80):
        rows = [
            columns
            | {"case": name, "label": name, "algorithm": name, "repetition": repetition, "bytes": size}
            | {"launch_id": launch, "shared_launch": launch, "call_s": time, "compared_s": time}
            for launch, (repetition, name) in enumerate(itertools.product(range(repetitions), names))
            for size in sizes
            for time in [1e-3 * float(np.exp(random.normal(0, 0.05)))]
        ]
        _, tables = fastest(pd.DataFrame(rows))
        claimed += any(set(each["algorithms"]) != set(names) for each in tables["ranges"])
    assert claimed < 10


# ---- the fitted latency and bandwidth, on times with known constants

FIT_SIZES = np.array([2**16 * 4**i for i in range(6)])
LATENCY_S, PER_BYTE_S = 1e-4, 2e-10
# all_reduce of 4 ranks: busbw is 1.5 times algbw.
BUSBW = 1.5 / PER_BYTE_S / 1e9


def times(launches, *, of_launch=0.0, noise=0.0, seed=0, sizes=FIT_SIZES):
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


@pytest.mark.parametrize(("launches", "sizes", "rows"), [(1, FIT_SIZES, 1), (3, FIT_SIZES[:1], 0)])
def test_fitted_has_no_interval_when_data_are_few(launches, sizes, rows):
    found = fitted(times(launches, sizes=sizes))
    assert len(found) == rows
    assert found[["latency_s_low", "busbw_high"]].isna().all(axis=None)


def test_intervals_contain_the_truth_when_launches_differ():
    rows = pd.concat([fitted(times(3, of_launch=0.05, noise=0.02, seed=seed)) for seed in range(300)])
    for name, truth in (("latency_s", LATENCY_S), ("busbw", BUSBW)):
        held = (rows[f"{name}_low"] <= truth) & (truth <= rows[f"{name}_high"])
        assert 0.92 < held.mean() < 0.98, name
