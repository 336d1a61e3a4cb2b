"""NCCL's log in several versions, the launch that enables it, and the Inspector's files."""

import json
from pathlib import Path
from typing import Any

import pytest

import fake_results as fake
from fake_launch import FakeLauncher
from guard import GUARD_S
from nccl_logs import NCCL_2_22, NCCL_2_27
from parabench.analysis.session import session_data
from parabench.analysis.step.nccl import choices
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.probes import nccl
from parabench.session.runner import EXPLAINING, Runner
from parabench.store.record import EXPLAIN_REPETITION, Launch, Status
from recordings import INSPECTED


@pytest.mark.parametrize(
    ("text", "chosen", "facts"),
    [
        (
            NCCL_2_22,
            [("all_gather", 37756928, "ring", "simple", None, 1)],
            {"version": "2.22.3+cuda12.6", "network": None},
        ),
        (
            NCCL_2_27,
            [
                ("all_reduce", 4, "tree", "ll", 1, 1),
                ("all_reduce", 26214400, "nvlstree", "simple", 16, 1),
                ("reduce_scatter", 1048576, "ring", "ll128", 4, 1),
            ],
            {
                "network": "AWS Libfabric", "transports": {"P2P/CUMEM": 2, "NET/IB/0(0)/GDRDMA": 1},
                "channels": {"coll": 24, "collnet": 24, "nvls": 16, "p2p": 32},
            },
        ),
        ("host:1:1 [0] NCCL INFO RCCL version : 2.18.3+hip6.0", [], {"version": "2.18.3+hip6.0"}),
    ],
)  # fmt: skip
def test_parse_log_reads_each_version(text: str, chosen: list[tuple[Any, ...]], facts: dict[str, Any]) -> None:
    seen = nccl.parse_log(text)
    assert [tuple(choice.values()) for choice in seen["choices"]] == chosen
    assert {name: seen[name] for name in facts} == facts


# -- the launch that explains ------------------------------------------------------------------------------------------

NCCL = Case(device="cuda", backend="nccl", world_size=2)
OTHERS = (
    Case(device="cuda", backend="nccl", world_size=1, strategy="single"),
    Case(device="cuda", backend="gloo", world_size=2),
    Case(device="cpu", backend="gloo", world_size=2),
)


def test_each_nccl_case_has_one_explaining_launch() -> None:
    launcher, kept = FakeLauncher(), list[Launch]()
    plan: Any = Plan(cases=(NCCL, *OTHERS), skipped=(), protocol=Protocol(launches=2, steps=3), seed=0)
    Runner(plan=plan, launch=launcher, keep=kept.append).run()
    assert (kept[0].case, kept[0].repetition) == (NCCL, EXPLAIN_REPETITION)
    assert [launch.case for launch in kept if launch.repetition == EXPLAIN_REPETITION] == [NCCL]
    explaining = [(spec.case, spec.protocol.instrumented) for spec in launcher.specs if spec.protocol.explain]
    assert explaining == [(NCCL, 0)]


def test_explaining_launch_is_in_no_statistic(tmp_path: Path) -> None:
    facts = {"nccl": [{"rank": 0, **nccl.parse_log(NCCL_2_27)}, {"rank": 1, **nccl.parse_log("")}]}
    explaining = fake.launch(NCCL, 99.0, repetition=EXPLAIN_REPETITION, facts=facts)
    seen = session_data(fake.write(tmp_path / "r.db", [explaining, *[fake.launch(NCCL, 0.04)] * 2]))
    assert seen.cases["n_launches"].tolist() == [2]
    assert seen.cases["step_time_s"].tolist() == pytest.approx([0.04])
    table = choices(seen)
    assert table["bytes"].tolist() == [4, 26214400, 1048576]
    assert table["algorithm"].tolist() == ["tree", "nvlstree", "ring"]
    assert set(table["case_id"]) == {NCCL.id}


def test_explaining_launch_records_the_log_of_every_rank() -> None:
    case = Case(strategy="faulty_helpers:writing_nccls_log", world_size=2, device="cpu", backend="gloo")
    launched = launch(LaunchSpec.of(case, EXPLAINING, deadline_s=GUARD_S))
    assert launched.status is Status.OK, launched.failure
    logged = [(each["rank"], each["choices"][0]["bytes"]) for each in launched.facts["nccl"]]
    assert logged == [(0, 4), (1, 5)]


# -- the Inspector -----------------------------------------------------------------------------------------------------


def inspected(op: Any, microseconds: float) -> str:
    return json.dumps(
        INSPECTED | {"coll_perf": INSPECTED["coll_perf"] | {"coll": op, "coll_exec_time_us": microseconds}}
    )


def test_inspected_has_medians_of_each_operation() -> None:
    rows = [*(inspected("AllReduce", t) for t in (10, 30, 11)), inspected("Mystery", 5), inspected(["damaged"], 5)]
    text = "\n".join(rows) + '\n{"header": {"id"'  # the file may be truncated
    first, other = nccl.inspected(text)
    assert (first["op"], first["bytes"], first["ranks"], first["calls"]) == ("all_reduce", 4096, 2, 3)
    assert first["duration_s"] == pytest.approx(11e-6)
    assert (first["algbw_bytes_per_s"], first["busbw_bytes_per_s"]) == (0.1e9, 0.2e9)
    assert (other["op"], other["calls"]) == ("Mystery", 1)
