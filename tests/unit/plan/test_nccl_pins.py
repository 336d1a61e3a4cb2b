"""Pins of NCCL's algorithms: NCCL's refusals leave cases out after a failed launch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_launch import FakeLauncher, run_fake
from parabench.launch.launcher import launch_order
from parabench.launch.spec import LaunchSpec
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.machine.versions import Nccl, this_nccl
from parabench.plan.case import Case
from parabench.plan.validate import exceeds_machine, missing_requirement, unpinned
from parabench.session.links import case_of_all_ranks
from parabench.session.request import Request
from parabench.store.record import EXPLAIN_REPETITION, REFERENCE_REPETITION, Failure, Launch, Status
from parabench.store.results import load

GPUS = Machine(cores=8, gpus=tuple(Gpu("NVIDIA H100", 80_000_000_000, n) for n in range(4)))


def case(algorithm: str, strategy: str = "ddp", **fields: Any) -> Case:
    size = fields.pop("world_size", 4)
    return Case(
        strategy=strategy, algorithm=f"nccl:{algorithm}", world_size=size, device="cuda", backend="nccl", **fields
    )


@pytest.mark.parametrize(
    ("pinned", "why"),
    [
        (case("tree", "fsdp"), "tree for all_reduce only, but it calls all_gather, reduce_scatter"),
        (case("pat", "ddp"), "pat for reduce_scatter, all_gather only, but it calls all_reduce"),
        (case("ring", "fsdp"), None),
        (case("nvls", "tp", sequence_parallel=True, model="gpt-nano"), None),
        (case("tree", "hsdp", ranks_per_node=2), None),
        (case("tree").replace(algorithm="ring"), None),
    ],
)
def test_unpinned_finds_pins_that_change_nothing(pinned: Case, why: str | None) -> None:
    found = unpinned(pinned, Nccl())
    assert found is None if why is None else why in str(found)
    assert (unpinned(pinned, Nccl((2, 23, 4))) is None) == (pinned.algorithm == "ring")


def test_nccl_version_is_unknown_with_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parabench.machine.versions.version", {"nvidia-nccl-cu13": "2.28.9"}.get)
    assert this_nccl({}) == Nccl((2, 28, 9))
    assert this_nccl({"LD_PRELOAD": "/opt/nccl/libnccl.so.2"}).version is None
    assert this_nccl({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}).version == (2, 28, 9)
    (tmp_path / "libnccl.so.2").touch()
    assert this_nccl({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}).version is None
    monkeypatch.setattr("parabench.machine.versions.version", lambda name: None)
    assert this_nccl({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}) == Nccl(None, shares_gpu=True)
    assert not this_nccl({"NCCL_MULTI_RANK_GPU_ENABLE": "0"}).shares_gpu


# -- pins that only fail in a launch -----------------------------------------------------------------------------------

SUITE = """'Which of the algorithms of NCCL is fastest?'
from parabench import sweep
CASES = sweep(strategy="ddp", algorithm=("native", "nccl:nvls"), world_size=2, backend="nccl", device="cuda")
"""
NO_ALGORITHM = "DistBackendError: NCCL error in: nccl.cpp:94, invalid usage, no algorithm/protocol available"


class Refusing(FakeLauncher):
    """NCCL here has no switch that reduces: whatever is pinned to nvls fails."""

    def __call__(self, spec: LaunchSpec) -> Launch:
        launch = super().__call__(spec)
        if spec.case.algorithm == "nccl:nvls":
            launch.status, launch.failure, launch.samples = Status.FAILED, Failure(NO_ALGORITHM, 0), []
        return launch


def test_refuted_pin_is_launched_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pins.py").write_text(SUITE)
    monkeypatch.setattr("parabench.session.session.this_machine", lambda: GPUS)
    monkeypatch.setattr("parabench.machine.gpus.describe", lambda *gpus: {"gpus": [], "links": {}, "driver": {}})
    asked = Request.of(suite=str(tmp_path / "pins.py"), argv=[], out=tmp_path / "out", launches=2, steps=3)
    assert run_fake(asked, Refusing())[0] == 0
    results = load(tmp_path / "out" / "results.db")
    repetitions = results.launch.groupby("algorithm")["repetition"].apply(sorted).to_dict()
    expected = {"nccl:nvls": [EXPLAIN_REPETITION], "native": [EXPLAIN_REPETITION, REFERENCE_REPETITION, 0, 1]}
    assert repetitions == expected
    finding = results.finding[results.finding["code"] == "pin_refused"].iloc[0]
    assert NO_ALGORITHM in finding["message"]
    plan = json.loads(results.session["plan"].iloc[0])
    assert [(each["case"]["algorithm"], each["tried"]) for each in plan["skipped"]] == [("nccl:nvls", True)]


# -- several ranks on one GPU, several communicators on one --------------------------------------------------------


def one_gpu(version: tuple[int, ...] | None, shares: bool) -> Machine:
    return replace(GPUS, gpus=GPUS.gpus[:1], nccl=Nccl(version, shares))


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (one_gpu((2, 30, 7), shares=False), "world_size 2 is larger than the 1 device(s) here; use 1 or fewer"),
        (one_gpu((2, 28, 9), shares=True), "ENABLE=1 with NCCL 2.30 or later (here is NCCL 2.28.9)"),
        (one_gpu((2, 30, 7), shares=True), None),
        (one_gpu(None, shares=True), None),
    ],
)
def test_ranks_share_a_gpu_when_nccl_allows_it(machine: Machine, said: str | None) -> None:
    asked = Case(strategy="ddp", world_size=2, device="cuda", backend="nccl")
    why = exceeds_machine(asked, machine)
    assert why is None if said is None else said in str(why)
    assert case_of_all_ranks((asked,), machine).world_size == (1 if said else 2)
    # One process for all devices has nothing to share.
    assert "drives 2 or more" in str(missing_requirement(asked.replace(strategy="dp"), machine))


def own(strategy: str, algorithm: str = "ring", **fields: Any) -> Case:
    named = {"device": "cuda", "backend": "nccl", "world_size": 4, **fields}
    return Case(strategy=strategy, algorithm=algorithm, **named)


@pytest.mark.parametrize(
    ("asked", "ordered"),
    [
        (own("tp_ddp", tp_size=2), True),
        (own("hsdp", ranks_per_node=2), True),
        (own("ddp"), False),
        (own("tp_fsdp", tp_size=4), False),  # the second dimension is of one rank
        (own("tp_ddp", "native", tp_size=2), False),
        (own("tp_ddp", "nccl:ring", tp_size=2), False),
    ],
)
def test_launch_order_is_implicit_for_several_communicators(asked: Case, ordered: bool) -> None:
    expected = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"} if ordered else {}
    assert launch_order([asked], {}) == expected
    # Any case of a shared launch may need it.
    plain = asked.replace(strategy="ddp", algorithm="native", ranks_per_node=None, tp_size=None)
    assert launch_order([plain, asked], {}) == expected
    assert launch_order([asked], {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}) == {}, "what the user has set stays"
