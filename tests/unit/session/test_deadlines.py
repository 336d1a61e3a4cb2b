"""Deadlines of launches that were never measured: on a GPU, a hang is reported within minutes."""

import pytest

from parabench.errors import UsageError
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.schedule import TrainingSchedule
from parabench.plan.suite import shipped
from parabench.session.deadlines import first_deadline_s
from parabench.session.request import Request
from parabench.session.runner import EXPLAINING, Runner
from parabench.store.record import Launch, Status

MOST_S = 900.0
# Nodes and GPUs per node.
MACHINES = [(1, 1), (1, 2), (1, 8), (2, 8)]


def machine(nodes, gpus):
    devices = tuple(Gpu("NVIDIA H100 80GB HBM3", 80 * 10**9, index) for index in range(gpus))
    return Machine(cores=64, gpus=devices, gpus_reason=None, nodes=nodes, ranks_per_node=gpus if nodes > 1 else None)


def specs_if_all_hang(request, here, status=Status.HUNG):
    """Return the spec of every launch of a session that always hangs."""
    specs = []

    def hang(spec):
        specs.append(spec)
        return Launch(case=spec.cases[0], status=status, started_utc="2026-01-01T00:00:00.000Z", wall_s=1.0)

    try:
        plan = request.plan(here).plan
    except UsageError:
        if len(here.gpus) > 1:
            raise
        return []  # the suite needs several GPUs
    Runner(plan=plan, launch=hang, keep=lambda launch: None).run()
    assert specs
    return specs


@pytest.mark.parametrize(("nodes", "gpus"), MACHINES)
@pytest.mark.parametrize("suite", shipped())
def test_first_deadlines_of_a_suite_are_minutes(suite, nodes, gpus):
    parts = Request.of(suite=suite, argv=[], out=None).parts()
    specs = [spec for part in parts for spec in specs_if_all_hang(part, machine(nodes, gpus))]
    assert {spec.device for spec in specs} <= {"cuda"}
    assert max((spec.deadline_s for spec in specs), default=0.0) <= MOST_S
    explaining = [spec for spec in specs if spec.protocol == EXPLAINING]
    assert max((spec.deadline_s for spec in explaining if not spec.case.compile), default=0.0) <= MOST_S / 3


def test_compilation_may_take_longer_on_the_cpu():
    request = Request.of(suite="quick", argv=[], out=None, axes=("model=toy", "compile=on", "bucket_mib=25"))
    (longest,) = {spec.deadline_s for spec in specs_if_all_hang(request, Machine(cores=4)) if spec.case.compile}
    assert longest == 660.0


def test_first_deadline_is_capped_on_an_accelerator_only():
    def deadline_s(device, seq_len, reference_s=None):
        case = Case(model="toy", device=device, backend="gloo", seq_len=seq_len)
        return first_deadline_s([case], TrainingSchedule(), reference_s)

    assert deadline_s("cpu", 1) == 60.0
    assert deadline_s("cpu", 1 << 30) > 1e5
    assert deadline_s("cuda", 1) == 120.0
    assert deadline_s("cuda", 1 << 40) == 660.0
    assert deadline_s("cuda", 1 << 40, reference_s=7.0) == 130.0


def test_reference_does_not_set_the_deadline_of_a_longer_launch():
    """`single` has the id of its own reference, which takes fewer steps."""
    options = {"measure_s": 120.0, "launches": 1}
    request = Request.of(suite="quick", argv=[], out=None, axes=("strategy=single", "model=mlp"), **options)
    specs = specs_if_all_hang(request, Machine(cores=4), Status.WRONG)
    assert min(spec.deadline_s for spec in specs if spec.protocol.seconds) >= 300.0


def test_shared_launch_of_new_cases_may_take_ten_times_all_of_them():
    one = Case(model="gpt2", device="cpu", backend="gloo", seq_len=1024, global_batch=64)
    alone = first_deadline_s([one], TrainingSchedule())
    assert first_deadline_s([one, one], TrainingSchedule(), longer=3.0) == pytest.approx(6 * alone)
