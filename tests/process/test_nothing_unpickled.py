"""Ranks exchange numbers and JSON only: real launches with pickle disabled.

An unpickled object can run any code, and c10d does not authenticate connections to a rank.
"""

import sys
from typing import Any, NoReturn

import pytest
from torch.distributed import distributed_c10d

import fake_collectives
from guard import GUARD_S
from parabench.launch.launcher import launch
from parabench.launch.results import RankReport
from parabench.launch.spec import LaunchSpec, RankEnv, Workload
from parabench.plan.case import Case
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.links import LinkProtocol
from parabench.plan.protocol import Protocol
from parabench.store.record import MIB, Launch, Status
from parabench.strategies import STRATEGIES
from parabench.workloads.collectives import CollectivesWorkload
from parabench.workloads.links import LinksWorkload
from parabench.workloads.training import TrainingWorkload
from slow_helpers import slow_but

PROTOCOL = Protocol(warmup=2, steps=1, instrumented=1)
COMMON: dict[str, Any] = {"device": "cpu", "backend": "gloo", "data": "synthetic", "seq_len": 8, "model": "gpt-nano"}

OF_FOUR = {"hsdp": {"ranks_per_node": 2}, "tp_ddp": {"tp_size": 2}, "tp_fsdp": {"tp_size": 2}}
CASES = {
    **{
        name: Case(strategy=name, world_size=4 if name in OF_FOUR else 2, **COMMON, **OF_FOUR.get(name, {}))
        for name, entry in STRATEGIES.items()
        if entry.missing is None and not entry.one_process and name != "single"
    },
    "ddp over two_level": Case(strategy="ddp", algorithm="two_level", world_size=4, ranks_per_node=2, **COMMON),
    "ddp over ring": Case(strategy="ddp", algorithm="ring", world_size=2, **COMMON),
    "pp, interleaved": Case(strategy="pp", schedule="interleaved", microbatches=4, world_size=2, **COMMON),
    "pp of a model that makes no batches": Case(
        strategy="pp", world_size=2, **COMMON | {"model": "pipeline_helpers:without_batches", "data": "text"}
    ),
}


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("an object was unpickled")


class NoPickle:
    """A workload whose ranks fail if they unpickle anything that another rank sent."""

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        vars(distributed_c10d)["_tensor_to_object"] = refuse
        sys.addaudithook(lambda event, _: refuse() if event == "pickle.find_class" else None)
        return super().measure(spec, env, rank)  # type: ignore[misc]


class Training(NoPickle, TrainingWorkload): ...


class Collectives(NoPickle, CollectivesWorkload): ...


class Links(NoPickle, LinksWorkload): ...


def run(case: Any, protocol: Any, workload: Workload) -> Launch:
    return launch(LaunchSpec.of(case, protocol, deadline_s=GUARD_S), workload=workload)


# Groups of a grid with shards, and messages between stages.
USUAL = ("tp_fsdp", "pp, interleaved")


@pytest.mark.parametrize("name", slow_but(USUAL, CASES))
def test_training_run_unpickles_nothing(name: str) -> None:
    seen = run(CASES[name], PROTOCOL, Training())
    assert (seen.status, seen.failure) == (Status.OK, None)


@pytest.mark.slow
def test_collectives_and_links_unpickle_nothing() -> None:
    one = fake_collectives.case("all_reduce", "ring", world_size=2, min_bytes=1024, max_bytes=1024)
    brief = CollectiveProtocol(mode="latency", launches=1, warmup=1, iterations=2)
    assert run(one, brief, Collectives()).failure is None
    two = Case(world_size=2, device="cpu", backend="gloo")
    quick = LinkProtocol(warmup=1, round_trips=5, most_bytes=MIB, transfers=2)
    assert run(two, quick, Links()).failure is None
