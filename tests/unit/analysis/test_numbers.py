import math

import pytest

import fake_collectives
import fake_results as fake
from parabench.analysis.collectives.bus import CALL_COLUMNS
from parabench.analysis.numbers import COLUMNS, case_table, numbers
from parabench.analysis.session import select_session
from parabench.errors import UsageError
from parabench.plan.case import DEFAULTS
from parabench.store.record import MIB, Failure, Sample, Status


def tables(results):
    table = numbers(results, select_session(results))
    return table, case_table(table)


def test_every_column_is_documented(tmp_path):
    """docs/reference/numbers.md lists these columns."""
    table, _ = tables(fake.write(tmp_path / "r.db", [fake.launch(fake.case())]))
    assert list(table) == [*COLUMNS, *DEFAULTS]
    launch = fake_collectives.launch(fake_collectives.case(), lambda size: 1e-3)
    results = fake_collectives.write(tmp_path / "c.db", [launch])
    calls = numbers(results, select_session(results))
    shared = [name for name in calls if name not in CALL_COLUMNS]
    assert list(calls) == [*shared, *CALL_COLUMNS]
    assert {*shared} < {*COLUMNS}


def test_step_time_is_of_the_slowest_rank(tmp_path):
    one = fake.launch(fake.case())
    one.samples = [
        Sample(0, 0, "warmup", "step_s", 9.0),
        Sample(0, 1, "measure", "step_s", 0.04),
        Sample(1, 1, "measure", "step_s", 0.05),
        Sample(0, 2, "measure", "step_s", 0.06),
        Sample(1, 2, "measure", "step_s", 0.03),
        Sample(0, 3, "measure", "step_s", 0.02),
        Sample(1, 3, "measure", "step_s", None),
        Sample(0, 4, "instrument", "step_s", 9.0),
    ]
    steps = fake.write(tmp_path / "r.db", [one]).steps
    assert steps["step"].tolist() == [1, 2, 3]
    assert steps["step_s"].tolist()[:2] == [0.05, 0.06]
    assert math.isnan(steps["step_s"][2])  # one rank unknown: unknown, not the other rank's


def test_statistic_is_a_low_quantile_on_cpu_and_median_on_gpu(tmp_path):
    steps = [0.010 + 0.001 * i for i in range(11)]
    cpu, gpu = fake.case(), fake.case(device="cuda")
    launches, cases = tables(fake.write(tmp_path / "r.db", [fake.launch(cpu, steps), fake.launch(gpu, steps)]))
    assert launches["step_s"].tolist() == pytest.approx([0.011, 0.015])
    assert launches["p90_s"].tolist() == pytest.approx([0.019, 0.019])
    assert launches["forward_s"].tolist() == pytest.approx([0.3 * 0.015] * 2)  # the median step
    assert launches["statistic"].tolist() == ["10th percentile", "median"]
    assert launches["tokens_per_s"].tolist() == pytest.approx([8 * 64 / 0.011, 8 * 64 / 0.015])
    assert cases["peak_memory_bytes"].tolist() == [101 * MIB, 101 * MIB]
    assert len({*cases["label"]}) == 2  # same label, other device: told apart
    assert cases["label"][0] == "ddp native, 2 ranks (device cpu)"


def test_case_table_averages_logs_and_counts_failures(tmp_path):
    one = fake.case()
    killed = Failure("out of memory", rank=1)
    results = fake.write(
        tmp_path / "r.db",
        [
            fake.launch(one, 1.0, repetition=-1),
            fake.launch(one, 0.04),
            fake.launch(one, 0.09, repetition=1),
            fake.launch(one, repetition=2, status=Status.OOM, failure=killed),
        ],
    )
    launches, cases = tables(results)
    (row,) = cases.to_dict("records")
    assert len(launches) == 4
    assert row["step_time_s"] == pytest.approx(0.06)
    assert row["spread"] == pytest.approx(0.09 / 0.04 - 1)
    assert (row["n_ok"], row["n_launches"], row["status"]) == (2, 3, "2 ok, 1 oom")
    assert row["error"] == "rank 1: out of memory"
    parts = [row[name] for name in ("data_s", "forward_s", "backward_s", "optimizer_s")]
    assert parts == pytest.approx([0.065 * share for share in (0.05, 0.3, 0.55, 0.1)])  # median of two launches


def test_select_session_takes_id_label_or_the_newest(tmp_path):
    path = tmp_path / "r.db"
    fake.write(path, [fake.launch(fake.case(), 0.1)], label="a")
    fake.write(path, [fake.launch(fake.case(), 0.2)], label="b")
    results = fake.write(path, [fake.launch(fake.case(), 0.3)], label="a")
    assert [select_session(results, key).id for key in (None, "a", "b", "1", 2)] == [3, 3, 2, 1, 2]
    assert numbers(results, select_session(results, "b"))["step_s"].tolist() == pytest.approx([0.2])
    with pytest.raises(UsageError, match=r"'c' is not in .*1 \(a\), 2 \(b\), 3 \(a\)"):
        select_session(results, "c")
