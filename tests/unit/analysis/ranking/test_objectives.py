"""Objectives of `best` besides the step time, its tables, and its JSON."""

import numpy as np
import pytest

import fake_results as fake
from answers_helpers import sweet_spots
from command_line import parabench
from parabench.analysis.ranking.objectives import OBJECTIVES
from parabench.plan.case import DEFAULTS
from parabench.store.record import MIB, DeviceSample, Status

GPU = fake.ENVIRONMENT | {"gpus": [{"name": "NVIDIA H200", "memory_bytes": 150 * 10**9, "mig": False}] * 4}


def spots(tmp_path, launches, objective="step_time_s", by=(), **more):
    """The answers, checked against the schema of their JSON."""
    (tmp_path / "r.db").unlink(missing_ok=True)
    results = fake.write(tmp_path / "r.db", launches, **more)
    answers = sweet_spots(results, None, OBJECTIVES[objective], by)
    assert all({*answer.differing} <= {*DEFAULTS} for answer in answers)
    return answers


def holding(peaks, device="cpu", repetitions=3, **noise):
    """Every case in every repetition; `peaks` are (case, seconds, MiB on its last rank)."""
    random = np.random.default_rng(0)
    wobble = {"time": 0.0, "memory": 0.0} | noise
    return [
        fake.launch(
            case,
            float(seconds * np.exp(wobble["time"] * random.standard_normal())),
            repetition=repetition,
            peak_bytes=mib * MIB * float(np.exp(wobble["memory"] * random.standard_normal()))
            - (case.world_size - 1) * MIB,
        )
        for repetition in range(repetitions)
        for case, seconds, mib in peaks
    ]


def test_throughput_compares_workloads_of_several_batches(tmp_path):
    cases = [fake.case(world_size=n, global_batch=8 * n) for n in (1, 2, 4)]
    seconds = {1: 0.040, 2: 0.050, 4: 0.060}
    launches = fake.sweep(cases, lambda c: seconds[c.world_size], noise=0.002)
    assert len(spots(tmp_path, launches)) == 3
    (answer,) = spots(tmp_path, launches, "tokens_per_s")
    assert [each.label for each in answer.candidates] == [f"ddp native, {n} rank{'s' * (n > 1)}" for n in (4, 2, 1)]
    for each, n in zip(answer.candidates, (4, 2, 1), strict=True):
        assert each.value == pytest.approx(8 * n * 64 / seconds[n], rel=0.01)
        assert each.value == pytest.approx(each.tokens_per_s)
        assert each.plus_minus / each.value == pytest.approx(each.plus_minus_s / each.step_time_s)
    assert answer.slower[1].slower == pytest.approx((0.040 / 8) / (0.060 / 32) - 1, rel=0.02)
    assert "global_batch" not in answer.work
    assert answer.sentence.startswith("Highest throughput: ddp native, 4 ranks: 34,")
    assert "takes " in answer.sentence
    assert answer.front == []  # a front needs steps of equal size


def test_memory_is_of_the_rank_with_the_highest_peak(tmp_path):
    peaks = [(fake.case(), 0.04, 200), (fake.case(strategy="fsdp"), 0.05, 150), (fake.case(strategy="tp"), 0.06, 150.5)]
    (answer,) = spots(tmp_path, holding(peaks, memory=0.01), "memory")
    assert answer.best.strategy == "fsdp"
    assert [each.strategy for each in answer.tied] == ["tp"]
    assert answer.best.value == pytest.approx(150 * MIB, rel=0.02)
    assert answer.basis == "peak resident memory of the largest rank"
    said = answer.sentence
    assert said.startswith(f"Lowest peak memory: fsdp native, 2 ranks: {answer.best.value / MIB:.0f} MiB (±")
    assert "Not statistically distinguishable from it (95%, 3 repetitions, ±" in said
    default = "PyTorch's default (ddp native, default bucket, same world size)"
    assert f"{default} needs {answer.default.slower:.0%} more memory" in said


def metered(case, watts, repetition, source="energy_j", seconds=0.2):
    """A launch of 20 steps within 4 s, and a counter or power readings of device 0 around them."""
    moments = np.linspace(0.0, 20.0, 201)
    readings = [DeviceSample(0, t, source, watts * t if source == "energy_j" else watts) for t in moments]
    facts = {"clock": {"began_s": 1000.0}, "phases": {"measure": [1010.0, 1014.0]}}
    return fake.launch(case, seconds, repetition=repetition, facts=facts, device_samples=readings)


def test_energy_is_per_token(tmp_path):
    cases = [fake.case(device="cuda", backend="nccl", world_size=n, global_batch=8 * n) for n in (1, 2)]
    wobble = (1.0, 1.01, 0.99)
    launches = [
        metered(case, watts * wobble[repetition], repetition)
        for repetition in range(3)
        for case, watts in zip(cases, (300.0, 500.0), strict=True)
    ]
    (answer,) = spots(tmp_path, launches, "joules", environment=GPU)
    assert answer.best.case_id == cases[1].id
    assert answer.best.value == pytest.approx(500 * 4 / 20 / (16 * 64), rel=1e-3)
    assert answer.slower[0].value == pytest.approx(300 * 4 / 20 / (8 * 64), rel=1e-3)
    assert answer.sentence.startswith("Lowest energy: ddp native, 2 ranks: 97.7 mJ per token (±")
    assert "ddp native, 1 rank needs 20% more energy (95%, 3 repetitions)." in answer.sentence
    assert answer.basis == "energy of its devices over the measured steps (energy counter)"


def test_by_has_the_best_for_each_value_of_an_axis(tmp_path):
    cases = [fake.case(algorithm=a, bucket_mib=b) for a in ("native", "ring") for b in (1.0, 25.0)]
    cases += [fake.case(strategy="layer_split"), fake.case(strategy="local_only")]
    oom = fake.case(algorithm="tree")
    truth = {"layer_split": 0.09, "local_only": 0.01}

    def seconds(case):
        return truth.get(case.strategy) or 0.04 * (1.001 if case.algorithm == "ring" else 1) * (
            1 + (case.bucket_mib == 1)
        )

    launches = fake.sweep(cases, seconds, noise=0.004)
    launches += [fake.launch(oom, repetition=repetition, status=Status.OOM) for repetition in range(3)]
    (answer,) = spots(tmp_path, launches, by=("algorithm",))
    found = {place.names[0]: place for place in answer.by}
    assert list(found)[2:] == ["–", "tree"]
    first, second, other = answer.by[:3]
    assert {first.names, second.names} == {("native",), ("ring",)}
    assert (first.case_id, first.distinguishable) == (answer.best.case_id, None)
    assert second.distinguishable is False
    assert other.distinguishable is True
    assert (other.axes, other.names) == (("algorithm",), ("–",))  # layers that are only split have no all-reduce
    assert [place.configurations for place in answer.by] == [2, 2, 1, 0]
    assert (found["tree"].case_id, found["tree"].status) == (None, "oom")


def test_front_has_cases_that_no_other_beats_in_both(tmp_path):
    names = ("ddp", "zero1", "zero2", "fsdp", "tp")
    seconds, mib = (0.040, 0.050, 0.055, 0.060, 0.070), (300, 250, 260, 150, 150)
    peaks = [(fake.case(strategy=name), s, m) for name, s, m in zip(names, seconds, mib, strict=True)]
    (answer,) = spots(tmp_path, holding(peaks))
    assert [point.strategy for point in answer.front] == ["ddp", "zero1", "fsdp"]
    last = answer.front[-1]
    assert (last.slower, last.less_memory) == (pytest.approx(0.5), pytest.approx(0.5))
    assert last.peak_memory_bytes == pytest.approx(150 * MIB)
    lines = parabench("best", tmp_path / "r.db").output.splitlines()
    at = lines.index("Pareto-optimal in step time and peak memory:")
    assert [line.split()[0] for line in lines[at + 2 : at + 5]] == ["ddp", "zero1", "fsdp"]
    assert lines[at + 4].endswith("60.0 ms      150 MiB     50%          50%")


def test_answers_of_gpus_and_all_strategies_fit_the_schema(tmp_path):
    cuda = [fake.case(strategy=name, device="cuda", backend="nccl") for name in ("ddp", "fsdp")]
    (answer,) = spots(tmp_path, fake.sweep(cuda, lambda _: 0.04), environment=GPU)
    assert answer.basis == "median of its steps, as on dedicated GPUs"
    results = fake.family(tmp_path / "family.db")
    for objective in ("step_time_s", "tokens_per_s", "memory"):
        answer, *_ = sweet_spots(results, None, OBJECTIVES[objective], ("strategy", "tp_size"))
        assert answer.objective == objective
