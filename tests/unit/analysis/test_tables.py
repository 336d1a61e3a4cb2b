from __future__ import annotations

import math

import numpy as np
import pytest

import fake_results as fake
import fake_turns
from answers_helpers import check
from parabench.analysis.scaling import scaling
from parabench.analysis.session import select_session
from parabench.analysis.tables import case_table, launch_table
from parabench.errors import UsageError
from parabench.store.record import MIB, DeviceSample, Failure, Sample, Status


def tables(results):
    launches = launch_table(results, select_session(results))
    return launches, case_table(launches)


def test_a_step_takes_as_long_as_its_slowest_rank_and_warm_up_is_left_out(tmp_path):
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


def test_one_number_per_launch_is_a_low_quantile_on_a_cpu_and_the_median_on_a_gpu(tmp_path):
    steps = [0.010 + 0.001 * i for i in range(11)]
    cpu, gpu = fake.case(), fake.case(device="cuda")
    launches, cases = tables(fake.write(tmp_path / "r.db", [fake.launch(cpu, steps), fake.launch(gpu, steps)]))
    assert launches["launch_step_s"].tolist() == pytest.approx([0.011, 0.015])
    assert launches["p90_s"].tolist() == pytest.approx([0.019, 0.019])
    assert launches["statistic"].tolist() == ["10th percentile", "median"]
    assert launches["tokens_per_s"].tolist() == pytest.approx([8 * 64 / 0.011, 8 * 64 / 0.015])
    assert cases["peak_memory_bytes"].tolist() == [101 * MIB, 101 * MIB]
    assert len({*cases["label"]}) == 2  # same label, other device: told apart
    assert cases["label"][0] == "ddp native, 2 ranks (device cpu)"


def test_cases_average_launches_on_the_log_scale_and_count_what_failed(tmp_path):
    one = fake.case()
    killed = Failure("out of memory", rank=1)
    results = fake.write(
        tmp_path / "r.db",
        [
            fake.launch(one, 1.0, block=-1),
            fake.launch(one, 0.04),
            fake.launch(one, 0.09, block=1),
            fake.launch(one, block=2, status=Status.OOM, failure=killed),
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


def test_unknown_memory_stays_unknown(tmp_path):
    known = fake.launch(
        fake.case(), device_samples=[DeviceSample(0, t, "used_bytes", v) for t, v in ((0, 5.0), (1, 7.0))]
    )
    unknown = fake.launch(fake.case(bucket_mib=1.0), peak_bytes=None)
    partly = fake.launch(fake.case(bucket_mib=2.0))
    partly.samples = [s._replace(value=None) if s.rank == 1 and s.step is None else s for s in partly.samples]
    launches, _ = tables(fake.write(tmp_path / "r.db", [known, unknown, partly]))
    assert launches["used_bytes"][0] == 7.0
    assert launches["peak_rss_bytes"].isna().tolist() == [False, True, True]
    assert launches["used_bytes"].isna().tolist() == [False, True, True]


def test_what_cases_that_share_a_launch_use_of_a_device_is_no_ones_memory(tmp_path):
    used = [DeviceSample(0, 0.0, "used_bytes", 5.0)]
    names = [fake.case(bucket_mib=size) for size in (1, 2)]
    of = fake_turns.shared([case.id for case in names], np.random.default_rng(0), seed=0)
    together = fake_turns.launches(of, names, block=1)
    together[0].device_samples.extend(used)
    own = [fake.launch(case, device_samples=list(used)) for case in names]
    launches, _ = tables(fake.write(tmp_path / "r.db", [*own, *together]))
    assert launches["used_bytes"].isna().tolist() == [False, False, True, True]


def test_a_session_is_chosen_by_id_or_label_and_is_the_newest_otherwise(tmp_path):
    path = tmp_path / "r.db"
    fake.write(path, [fake.launch(fake.case(), 0.1)], label="a")
    fake.write(path, [fake.launch(fake.case(), 0.2)], label="b")
    results = fake.write(path, [fake.launch(fake.case(), 0.3)], label="a")
    assert [select_session(results, key).id for key in (None, "a", "b", "1", 2)] == [3, 3, 2, 1, 2]
    assert launch_table(results, select_session(results, "b"))["launch_step_s"].tolist() == pytest.approx([0.2])
    with pytest.raises(UsageError, match=r"'c' is not in .*1 \(a\), 2 \(b\), 3 \(a\)"):
        select_session(results, "c")


def test_efficiency_is_against_one_device_where_it_was_measured(tmp_path):
    single = fake.case(strategy="single", world_size=1)
    ddp = {n: fake.case(world_size=n) for n in (2, 4)}
    truth = {single: 0.080, ddp[2]: 0.050, ddp[4]: 0.025}
    launches, _ = tables(fake.write(tmp_path / "r.db", fake.sweep(truth, truth.__getitem__)))
    curve = scaling(launches)
    assert curve["world_size"].tolist() == [1, 2, 4]
    assert curve["efficiency"].tolist() == pytest.approx([1.0, 0.8, 0.8])

    launches, _ = tables(fake.write(tmp_path / "s.db", fake.sweep(ddp.values(), truth.__getitem__)))
    curve = scaling(launches)
    assert curve["efficiency"].tolist() == pytest.approx([1.0, 1.0])
    assert set(curve["base_world_size"]) == {2}


def codes(results):
    return {finding.code: finding for finding in check(results)}


def test_every_doubt_is_found_and_names_its_case(tmp_path):
    drifting, noisy, wide, lame, flaky = (fake.case(bucket_mib=float(b)) for b in (1, 2, 3, 4, 5))
    wide = fake.case(bucket_mib=3.0, world_size=4, threads=4)
    launches = []
    for block in range(3):
        launches += [
            fake.launch(drifting, np.linspace(0.04, 0.06, 30).tolist(), block=block),
            fake.launch(noisy, 0.04 * (1 + 0.2 * block), block=block),
            fake.launch(wide, 0.04, block=block),
            slow := fake.launch(lame, 0.04, block=block),
        ]
        slow.samples = [
            s._replace(value=s.value * 2) if s.metric == "forward_s" and s.rank == 1 else s for s in slow.samples
        ]
    launches += [fake.launch(flaky), fake.launch(flaky, block=1, status=Status.HUNG)]
    found = codes(fake.write(tmp_path / "r.db", launches))
    assert found["drift"].case_id == drifting.id
    assert "in 3 of 3 launches the last third of the steps was slower" in found["drift"].message
    assert found["noisy"].case_id == noisy.id
    assert "40 %" in found["noisy"].message
    assert found["slow_rank"].case_id == lame.id
    assert found["fails_sometimes"].case_id == flaky.id
    assert "16 computing threads on 8 cores" in found["oversubscribed"].message
    assert "5 MiB" in found["few_launches"].message
    assert len(found) == 6
    assert all(finding.advice for finding in found.values())
