"""Defaults by device and by the number of devices."""

import pytest

from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.plan.case import DEFAULTS
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.resolve import ON_CUDA, defaults_on, global_batch
from parabench.plan.suite import Suite, sweep
from parabench.session.request import Request, plan_training
from parabench.session.runner import Runner

BY_TIME = {"warmup": None, "steps": None, "warmup_s": 2.0, "measure_s": 2.0}


def with_gpus(number, memory=80e9):
    gpus = tuple(Gpu("NVIDIA H100 80GB HBM3", None if memory is None else int(memory), at) for at in range(number))
    return Machine(cores=2, gpus=gpus, gpus_reason=None if gpus else "none")


def planned(machine, suite="quick", **options):
    asked = Request.of(suite=suite, argv=[], out=None, **options)
    return plan_training(asked, machine, turns=True).plan


def case_of(machine, **axes):
    mine = Suite(name="s", path=None, question="q", sweeps=(sweep(**axes),), protocol=Protocol())
    (case,) = make_plan(mine, {}, Protocol(), machine, 0).cases
    return case


# -- a case


def test_on_the_cpu_it_is_what_a_case_has():
    case = case_of(with_gpus(0), world_size=2)
    assert {name: getattr(case, name) for name in (*ON_CUDA, "data", "global_batch")} == {
        "model": "gpt-nano", "precision": "ieee", "seq_len": 64, "data": "text", "global_batch": 8
    }  # fmt: skip
    assert case == case_of(with_gpus(2), world_size=2, device="cpu")
    assert defaults_on("cpu", with_gpus(2)).items() <= DEFAULTS.items()


def test_on_cuda_it_is_what_loads_a_gpu():
    case = case_of(with_gpus(2), world_size=2)
    assert (case.model, case.precision, case.seq_len, case.data) == ("gpt2", "bf16-mixed", 1024, "synthetic")
    assert (case.global_batch, case.device, case.backend) == (16, "cuda", "nccl")


def test_defaults_keep_chosen_values():
    gpu = with_gpus(1)
    own = {"model": "gpt-mini", "precision": "ieee", "seq_len": 128, "data": "text", "global_batch": 4}
    case = case_of(gpu, strategy="single", **own)
    assert {name: getattr(case, name) for name in own} == own
    assert case_of(gpu, strategy="ddp", batch_per_rank=3).global_batch == 3
    mlp = case_of(gpu, strategy="single", model="mlp")
    assert (mlp.seq_len, mlp.precision) == (1, "bf16-mixed")


@pytest.mark.parametrize(
    ("gpus", "memory", "batch"),
    [(1, 80e9, 8), (1, 4 << 30, 1), (2, 80e9, 16), (8, 192e9, 64), (8, 80e9, 32), (8, 24e9, 8)],
)
def test_the_batch_fits_one_device_and_divides_among_all(gpus, memory, batch):
    assert global_batch(with_gpus(gpus, memory)) == batch


# -- suites by machine


def test_quick_asks_on_several_gpus_what_it_asks_on_the_cpu():
    here, two = planned(with_gpus(0)), planned(with_gpus(4))
    assert len(here.cases) == len(two.cases) == 20
    assert [case.label for case in here.cases] == [case.label for case in two.cases]
    assert {case.seq_len for case in here.cases} == {32}
    assert {(case.model, case.precision, case.seq_len, case.global_batch) for case in two.cases} == {
        ("gpt2", "bf16-mixed", 1024, 32)
    }
    # Four ranks exceed two devices.
    pair = planned(with_gpus(2))
    assert {case.world_size for case in pair.cases} == {1, 2}
    assert len(pair.cases) + len(pair.skipped) == 20
    # If cases are interleaved, separate launches are short.
    assert (here.protocol.races, here.protocol.steps, here.protocol.measure_s) == (True, 6, None)
    assert planned(with_gpus(0), launches=2).protocol.steps == 20
    assert {name: getattr(two.protocol, name) for name in BY_TIME} == BY_TIME


def test_quick_on_one_gpu_plans_few_launches():
    """Its title promises minutes, so the plan has little of what takes long on a GPU: processes and compilation."""
    machine = with_gpus(1)
    made = planned(machine)
    launches = list(Runner(plan=made, room=machine.room).expected())
    assert sum(not protocol.takes_turns for _, _, protocol in launches) == 7  # 5 alone, 2 references
    assert sum(case.compile for case, _, protocol in launches if not protocol.takes_turns) == 1
    assert sum(protocol.seconds for _, _, protocol in launches if protocol.by_time) == 20
    assert made.protocol.budget_s == 180
    assert {case.global_batch for case in made.cases} == {8}
