"""FLOP/s and share of the peak, from stores with a known truth."""

import numpy as np
import pytest
import torch

import fake_results as fake
from guard import GUARD_S
from parabench.analysis.efficiency import COUNTED, FORMULA, efficiency, flops_per_token
from parabench.analysis.session import session_data
from parabench.launch.spec import LaunchSpec, RankEnv
from parabench.machine.peaks import peak_of
from parabench.models.base import sizes
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes.profiler import count_flops
from parabench.strategies.base import ForwardBackward, RankInfo, StrategyContext
from parabench.workloads.training import train
from trained_helpers import TRAINED_TOKENS, small_gpt

MODEL = {"parameters": 1000, "embedding_parameters": 400, "layers": 2, "heads": 4, "head_dim": 8}
PER_TOKEN = 6 * 600 + 12 * 2 * 4 * 8 * 64
GPU = {"name": "NVIDIA H200", "memory_bytes": 150 * 10**9, "mig": False, "reasons": {}}


def on_gpus(count, **fields):
    return fake.ENVIRONMENT | {"gpus": [GPU | fields] * count}


def gpu_case(**fields):
    return fake.case(device="cuda", backend="nccl", precision="bf16-mixed", **fields)


def table(tmp_path, launches, environment=fake.ENVIRONMENT):
    results = fake.write(tmp_path / "r.db", launches, environment=environment)
    return efficiency(session_data(results))


def test_flops_per_token_counts_parameters_and_attention():
    assert flops_per_token(MODEL, 64) == PER_TOKEN
    assert np.isnan(flops_per_token({"parameters": 1000, "embedding_parameters": 0}, 64))


def test_flop_per_second_and_mfu_of_a_decoder(tmp_path):
    case = gpu_case(world_size=2)
    row = table(tmp_path, [fake.launch(case, 0.01, facts={"model": MODEL})], on_gpus(4)).iloc[0]
    assert row["flops_per_s"] == pytest.approx(PER_TOKEN * 8 * 64 / 0.01)
    assert (row["devices"], row["flops_source"]) == (2, FORMULA)
    assert row["mfu"] == pytest.approx(row["flops_per_s"] / (2 * 989.5e12))
    assert row["peak_source"] == "NVIDIA H200 Tensor Core GPU datasheet (SXM)"


@pytest.mark.parametrize(
    ("flops", "source", "per_s", "reason"),
    [
        ({"counted": 5_000_000, "by": {}}, COUNTED, 5e8, ""),
        ({"counted": None, "reason": "an unknown operation"}, None, np.nan, "an unknown operation"),
    ],
)
def test_other_models_take_what_the_reference_counted(tmp_path, flops, source, per_s, reason):
    case = fake.case(model="mlp", seq_len=1)
    reference = fake.launch(case.reference(), 0.1, repetition=-1, facts={"flops": flops})
    row = table(tmp_path, [reference, fake.launch(case, 0.01, facts={"model": {"parameters": 10}})]).iloc[0]
    assert (row["flops_source"], row["unit"], row["flops_reason"]) == (source, "samples", reason)
    assert row["flops_per_s"] == pytest.approx(per_s, nan_ok=True)


@pytest.mark.parametrize(
    ("case", "environment", "why"),
    [
        (fake.case(), fake.ENVIRONMENT, "it ran on CPU cores, whose peak is not published"),
        (gpu_case(), on_gpus(2, name="Quadro 9"), "the peak of 'Quadro 9' is not in the table"),
        (gpu_case(), on_gpus(2, mig=True), "it ran on parts of devices (MIG), whose peak is not published"),
        (gpu_case(), on_gpus(1), "2 ranks shared 1 device"),
        (gpu_case(), fake.ENVIRONMENT, "which devices it ran on was not recorded"),
        (gpu_case(), on_gpus(2, name="Tesla T4"), "Tesla T4 has no arithmetic unit for bf16"),
    ],
)
def test_mfu_has_a_reason_when_the_peak_is_unknown(tmp_path, case, environment, why):
    row = table(tmp_path, [fake.launch(case, 0.01, facts={"model": MODEL})], environment).iloc[0]
    assert np.isnan(row["mfu"])
    assert row["flops_per_s"] > 0
    assert row["mfu_reason"] == why


@pytest.mark.parametrize(
    ("name", "arithmetic", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A10", "bf16", 125e12),
        ("GRID A100-40C", "bf16", None),
        ("Tesla T4", "fp16", 65e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H100 PCIe", "bf16", 756.5e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "ieee", None),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12),
        ("AMD Instinct MI300X", "ieee", 163.4e12),
        ("AMD Instinct MI300A", "bf16", None),
    ],
)
def test_peak_is_found_by_the_name_of_the_device(name, arithmetic, peak):
    assert peak_of(name, arithmetic)[0] == peak


def test_peak_of_partition_is_unknown():
    mi300x = "AMD Instinct MI300X"
    assert peak_of(mi300x, "bf16", 304) == peak_of(mi300x, "bf16") == (1307.4e12, peak_of(mi300x, "ieee")[1])
    assert peak_of(mi300x, "bf16", 38) == (None, "AMD Instinct MI300X is a partition: 38 of 304 compute units")


def test_counted_flops_of_a_decoder_match_the_formula():
    """The formula counts 6 operations for every bias and norm, and the counter none. The counter has 7 products of
    attention's matrices, and the formula 6."""
    model = small_gpt()
    tokens = torch.zeros(2, TRAINED_TOKENS, dtype=torch.long)
    context = StrategyContext(0, 1, torch.device("cpu"), Case())
    compute = ForwardBackward(module=model.module, model=model, context=context)
    found = count_flops(compute, iter([(tokens, tokens)]))
    known = sizes(model) | {"layers": 2, "heads": 4, "head_dim": 16}
    assert known["embedding_parameters"] == model.module.stem.positions.weight.numel()  # the tokens' is the head's too
    formula = flops_per_token(known, TRAINED_TOKENS) * tokens.numel()
    vectors = sum(p.numel() for p in model.module.parameters() if p.dim() == 1)
    attention = 12 * 2 * 4 * 16 * TRAINED_TOKENS * tokens.numel()
    assert found["counted"] == formula - 6 * vectors * tokens.numel() + attention / 6
    assert sum(found["by"].values()) == found["counted"]


@pytest.mark.parametrize(("more", "counts"), [({}, True), ({"fused": False}, False)])
def test_only_the_plain_training_on_one_device_is_counted(tmp_path, more, counts):
    plain = Case(strategy="single", model="toy", data="synthetic", seq_len=1, device="cpu", backend="gloo", **more)
    report = train(
        LaunchSpec.of(plain, Protocol(warmup=2, steps=1, instrumented=0), GUARD_S),
        RankEnv(folder=tmp_path, timeout_s=GUARD_S),
        RankInfo(0, 1, torch.device("cpu")),
    )
    facts = report.of(0).facts
    assert ("flops" in facts) == counts
    if counts:
        # 10-10-1 for 8 samples: forward, the weights' gradients, and the second layer's inputs'.
        assert facts["flops"]["counted"] == 2 * 8 * (2 * (10 * 10 + 10) + 10)
