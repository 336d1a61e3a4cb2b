"""What a rank imports by itself costs every launch that time again: the fork server has imported all of it before."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import fake_collectives
import pytest
from guard import GUARD_S

from parabench.collectives import ALGORITHMS
from parabench.launch.courses import course_of
from parabench.launch.launcher import observe
from parabench.launch.processes import PRELOAD
from parabench.launch.rank import die_with_driver, hand_over
from parabench.launch.spec import LaunchSpec
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.protocol import LinkProtocol, Protocol
from parabench.probes import PROBES
from parabench.store.record import MIB, Status
from parabench.strategies import STRATEGIES
from parabench.workloads import collectives as bench
from parabench.workloads import links as links_bench
from parabench.workloads.training import measure

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def preloaded() -> set[str]:
    """The modules of a process that has imported what the fork server does."""
    code = f"import sys, {PRELOAD}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "table", [STRATEGIES, ALGORITHMS, MODELS, PROBES], ids=["strategies", "algorithms", "models", "probes"]
)
def test_whatever_a_case_can_name_is_there(table: dict[str, Any], preloaded: set[str]) -> None:
    # What needs a package that may not be installed is imported by the ranks that need it.
    targets = {name: each.target.split(":")[0] for name, each in table.items() if not getattr(each, "package", None)}
    assert {name for name, module in targets.items() if module and module not in preloaded} == set()


def imports(job: Any, measured: Any) -> None:
    """A rank that tells what it imported itself."""
    die_with_driver()
    before = set(sys.modules)
    hand_over(job, lambda job, rank: {**measured(job, rank), "imports": sorted(set(sys.modules) - before)})


def train(job: Any) -> None:
    imports(job, measure)


def time_calls(job: Any) -> None:
    imports(job, bench.measure)


def time_links(job: Any) -> None:
    imports(job, links_bench.measure)


DDP = Case(world_size=2, device="cpu", backend="gloo", data="synthetic", seq_len=8, algorithm="ring")
FSDP = replace(DDP, strategy="fsdp", bucket_mib=None)
STEPS = Protocol(warmup=2, steps=1, launches=1, instrumented=1)
CALLS = CollectiveProtocol(launches=1, warmup=1, iterations=1)
MESSAGES = LinkProtocol(warmup=1, round_trips=2, most_bytes=MIB, transfers=1)


@pytest.mark.parametrize(
    ("case", "protocol", "entry"),
    [
        (DDP, STEPS, train),
        (FSDP, STEPS, train),
        (fake_collectives.case(algorithm="tree", max_bytes=1 << 16), CALLS, time_calls),
        (DDP, MESSAGES, time_links),
    ],
    ids=["ddp", "fsdp", "collectives", "links"],
)
def test_a_rank_imports_nothing_of_ours_or_torchs(case: Any, protocol: Any, entry: Any) -> None:
    order = LaunchSpec.of(case, protocol, GUARD_S)
    course = replace(course_of(order, None), entry=entry)
    launch, (part,) = observe(course, GUARD_S, order)
    assert launch.status is Status.OK, launch.failure
    own = {
        name for result in part.results for name in result["imports"] if name.split(".")[0] in ("parabench", "torch")
    }
    assert own == set()
