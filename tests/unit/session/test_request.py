"""Plans of requests: warnings about the CPU and NVML, and compute-only launches."""

from dataclasses import replace

import pytest

import fake_results as fake
from parabench.analysis.ranking.best import best, closing_lines, lines
from parabench.analysis.session import session_data
from parabench.errors import UsageError
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.session.request import Request, plan_compute, plan_training
from parabench.session.resume import begin_session
from parabench.store.record import MEASURED_ON_CPU
from parabench.store.results import load
from parabench.store.store import Store

WHY = "NVML is not available: no library; torch finds no device: No HIP GPUs are available"
LINE = f"Runs on the CPU: {WHY}."
HERE = Machine(cores=4, gpus_reason=WHY, cpu_reason=WHY)
AMD = Machine(cores=4, gpus=(Gpu("AMD Instinct MI300X", 192 << 30),), gpus_reason="NVML does not read AMD devices")


def planned(machine, folder, *axes):
    request = Request(argv=["parabench", "run", "quick"], out=folder, suite="quick", axes=axes)
    return request, plan_training(request, machine)


def codes(planned):
    return [each.code for each in planned.findings]


@pytest.mark.parametrize(
    ("machine", "axes", "expected"),
    [
        (HERE, (), [MEASURED_ON_CPU]),
        (HERE, ("device=auto",), [MEASURED_ON_CPU]),
        (HERE, ("device=cpu",), []),
        (replace(HERE, cpu_reason=None), (), []),
        (AMD, (), []),
    ],
)
def test_cpu_is_announced_unless_it_was_chosen(tmp_path, machine, axes, expected):
    assert codes(planned(machine, tmp_path, *axes)[1]) == expected


def test_cpu_is_announced_for_collectives(tmp_path):
    for options, expected in (({}, [MEASURED_ON_CPU]), ({"device": "cpu"}, [])):
        assert codes(Request(kind="collectives", argv=[], out=tmp_path, options=options).plan(HERE)) == expected


def test_answer_starts_with_why_the_cpu_was_measured(tmp_path):
    launches = [fake.launch(fake.case(), repetition=repetition) for repetition in range(3)]
    findings = planned(HERE, tmp_path)[1].findings
    seen = session_data(fake.write(tmp_path / "r.db", launches, findings=findings))
    assert closing_lines(seen)[0] == LINE
    assert lines(best(seen))[0] == LINE
    without = session_data(fake.write(tmp_path / "without.db", launches))
    assert [LINE, *closing_lines(without)] == closing_lines(seen)
    assert [LINE, *lines(best(without))] == lines(best(seen))


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (AMD, "Health, energy and clocks of the devices are unknown: NVML does not read AMD devices."),
        (replace(HERE, cpu_reason=None), f"Device memory and health are unknown: {WHY}."),
    ],
)
def test_session_records_what_nvml_does_not_read(tmp_path, machine, message):
    request, plan = planned(machine, tmp_path)
    with Store.open_or_create(tmp_path / "results.db") as store:
        begin_session(store, request, plan, machine)
    assert load(tmp_path / "results.db").finding["message"].tolist() == [message]


# -- compute-only launches -------------------------------------------------------------------------------------------


def compute(*axes, cores=4):
    """Return the (strategy, ranks, nodes) of compute-only cases."""
    request = Request(kind="compute", argv=[], out=None, suite="calibration", axes=axes)
    plan = plan_compute(request, Machine(cores=cores, gpus_reason="none")).plan
    return [(case.strategy, case.world_size, case.nodes) for case in plan.cases]


def test_plan_compute_divides_ranks_among_nodes():
    assert set(compute()) == {
        *((strategy, ranks, nodes) for strategy in ("ddp", "zero1", "fsdp") for ranks, nodes in ((2, 1), (16, 4))),
        ("tp", 2, 1), ("tp", 4, 1),
    }  # fmt: skip
    assert set(compute("strategy=ddp", "world_size=4,8", cores=2)) == {("ddp", 4, 2), ("ddp", 8, 4)}


def test_plan_compute_refuses_what_it_cannot_measure():
    with pytest.raises(UsageError, match="cannot be predicted, because its ranks do different"):
        compute("strategy=ddp,parameter_server", "world_size=4")
