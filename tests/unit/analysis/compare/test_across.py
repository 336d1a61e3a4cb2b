"""Two machines: matching configurations, ratios with a known truth, and the output."""

import numpy as np
import pytest

import fake_results as fake
from command_line import parabench
from fake_results import OOM
from parabench.analysis.compare.comparison import STEP, compared
from parabench.analysis.compare.machines import answer
from parabench.analysis.compare.sides import side_of
from parabench.report.views.comparison import machines_view
from parabench.store.record import MIB, DeviceSample
from schema_helpers import EVIL, check

BUCKETS = (1.0, 4.0, 25.0)
CPU = [fake.case(bucket_mib=b) for b in BUCKETS]
CUDA = [fake.case(bucket_mib=b, device="cuda", backend="nccl") for b in BUCKETS]


def on(name, count, **more):
    return fake.ENVIRONMENT | {"gpus": [{"name": name, "memory_bytes": 80 * 2**30}] * count} | more


def side(tmp_path, role, launches, **more):
    return side_of(fake.write(tmp_path / f"{role}.db", launches, label=role, **more), role=role)


def burning(launch, watts, metric="energy_j"):
    """The launch, whose devices spend `watts` from a second before its measured steps to a second after."""
    launch.facts |= {"clock": {"began_s": 100.0}, "phases": {"measure": [101.0, 103.0]}}
    for device in range(launch.case.world_size):
        launch.device_samples += [
            DeviceSample(device, t, metric, watts * t if metric == "energy_j" else watts)
            for t in np.arange(0.0, 4.1, 0.1)
        ]
    return launch


@pytest.fixture(scope="module")
def gpus(tmp_path_factory):
    """0.4 times the step; three quarters of the power; the same peak."""
    folder = tmp_path_factory.mktemp("gpus")
    old = [burning(each, 400.0) for each in fake.sweep(CUDA, lambda c: 0.05, noise=0.01, repetitions=4, seed=1)]
    new = [burning(each, 300.0) for each in fake.sweep(CUDA, lambda c: 0.02, noise=0.01, repetitions=4, seed=2)]
    other = {"versions": {"torch": "2.14.0"}, "host": EVIL}
    return compared(
        side(folder, "base", old, environment=on("A100", 8)),
        side(folder, "candidate", new, environment=on("H200", 2, **other), argv=["parabench", EVIL]),
    )


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Return CUDA and CPU sessions with missing cases, a failed case, and a case with a single launch."""
    folder = tmp_path_factory.mktemp("mixed")
    alone, failed, once = (
        fake.case(strategy=name, device="cuda", backend="nccl") for name in ("fsdp", "zero1", "zero2")
    )
    old = [*fake.sweep(CUDA, lambda c: 0.05, noise=0.01), fake.launch(alone), fake.launch(failed), fake.launch(once)]
    new = fake.sweep(CPU, lambda c: 0.5, noise=0.01, seed=1)
    new += [fake.launch(fake.case(strategy="zero1"), **OOM), fake.launch(fake.case(strategy="zero2"), 0.4)]
    new += [fake.launch(fake.case(strategy="tp"))]
    return compared(
        side(folder, "base", old, environment=on("A100", 8)),
        side(folder, "candidate", new, skipped=[(fake.case(strategy="fsdp"), f"too small {EVIL}")], finished=False),
    )


def test_ratios_of_a_known_truth(gpus):
    means = {mean.quantity: mean for mean in answer(gpus).tables["means"].itertuples()}
    step_time = means[STEP]
    assert step_time.ratio == pytest.approx(0.4, rel=0.01)
    assert step_time.low < 0.4 < step_time.high
    assert (step_time.cases, step_time.session_sd) == (3, 0.05)
    # Devices burn for two seconds of 20 steps, whatever those took: 8 x 64 tokens a step.
    found = (gpus.of(name).itertuples() for name in (STEP, "per_joule", "per_gb"))
    for step, joule, gb in zip(*found, strict=True):
        assert joule.base == pytest.approx(20 * 8 * 64 / (400 * 2 * 2))
        assert joule.ratio == pytest.approx(4 / 3)
        assert gb.candidate == pytest.approx(8 * 64 / step.candidate / (101 * MIB / 1e9))
        assert gb.ratio == pytest.approx(1 / step.ratio)
        assert step.low < step.ratio < step.high
        assert len(step.base_launches) == len(step.candidate_launches) == 4
    assert means["per_joule"].ratio == pytest.approx(4 / 3)
    assert means["per_gb"].ratio == pytest.approx(1 / step_time.ratio)


def test_warnings_name_what_else_differs(gpus, mixed):
    assert [each.code for each in answer(gpus).warnings] == ["one_machine", "software"]
    found = answer(mixed).warnings
    assert [each.code for each in found] == ["one_machine", "statistic", "unfinished"]
    assert "the median of its steps on base and the 10th percentile on candidate" in found[1].message


@pytest.mark.parametrize("which", ["gpus", "mixed"])
def test_json_is_what_the_schema_says(request, which):
    tables = check(answer(request.getfixturevalue(which)))["tables"]
    assert tables["workloads"][0]["best"] == ("candidate" if which == "gpus" else "base")


@pytest.mark.parametrize("which", ["gpus", "mixed"])
def test_markdown_and_page_hold_every_case_and_no_script(request, which):
    of = request.getfixturevalue(which)
    view = machines_view((of.base, of.candidate), answer(of))
    written, page = view.markdown(), view.html()
    assert "<script" not in written
    assert "<script>alert" not in page
    for label in of.cases["label"]:
        assert label in page
        assert label in written


def test_machines_have_no_pass_and_no_fail(tmp_path):
    stores = tmp_path / "a.db", tmp_path / "b.db"
    fake.write(stores[0], fake.sweep(CPU, lambda c: 0.04, noise=0.001))
    fewer = fake.ENVIRONMENT | {"cores": 4}
    fake.write(stores[1], fake.sweep(CPU, lambda c: 0.08, noise=0.001), environment=fewer)
    refused = parabench("compare", *stores)
    assert refused.exit_code == 2
    assert "--across-hardware" in refused.stderr
    result = parabench("compare", *stores, "--across-hardware", "--markdown", "-", "--html", tmp_path / "c.html")
    assert result.exit_code == 0
    assert result.stdout.startswith("## 4 cores of Some CPU against 8 cores of Some CPU")
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
