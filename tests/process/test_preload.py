"""What a rank imports by itself costs every launch that time again: the fork server has imported all of it before."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fake_collectives
from guard import GUARD_S
from parabench.collectives import ALGORITHMS
from parabench.launch.launcher import launch
from parabench.launch.processes import PRELOAD
from parabench.launch.results import RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, workload_of
from parabench.models import MODELS
from parabench.plan.case import Case
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.protocol import LinkProtocol, Protocol
from parabench.probes import PROBES
from parabench.store.record import MIB, Status
from parabench.strategies import STRATEGIES
from parabench.workloads import WORKLOADS


@pytest.fixture(scope="module")
def preloaded() -> set[str]:
    """The modules of a process that has imported what the fork server does."""
    code = f"import sys, {PRELOAD}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


TABLES = {
    "strategies": STRATEGIES,
    "algorithms": ALGORITHMS,
    "models": MODELS,
    "workloads": WORKLOADS,
    "probes": PROBES,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_whatever_a_case_can_name_is_there(table: dict[str, Any], preloaded: set[str]) -> None:
    # What needs a package that may not be installed is imported by the ranks that need it.
    targets = {name: each.target.split(":")[0] for name, each in table.items() if not getattr(each, "package", None)}
    assert {name for name, module in targets.items() if module and module not in preloaded} == set()


def test_a_strategy_that_the_table_names_cannot_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a_new_strategy.py").write_text("def a_new_strategy(model, context): ...")
    code = (
        "import sys\nfrom parabench.strategies import STRATEGIES\nfrom dataclasses import replace\n"
        "STRATEGIES['new'] = replace(STRATEGIES['ddp'], target='a_new_strategy:a_new_strategy')\n"
        f"import {PRELOAD}\nassert 'a_new_strategy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


class Imports:
    """A workload whose first rank tells what it imported itself."""

    def __init__(self, workload: Any) -> None:
        self._workload = workload

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # it is being unpickled
            raise AttributeError(name)
        return getattr(self._workload, name)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        before = set(sys.modules)
        report: RankReport = self._workload.measure(spec, env, rank)
        report.facts["imports"] = sorted(set(sys.modules) - before)
        return report


DDP = Case(world_size=2, device="cpu", backend="gloo", data="synthetic", seq_len=8, algorithm="ring")
FSDP = replace(DDP, strategy="fsdp", bucket_mib=None)
STEPS = Protocol(warmup=2, steps=1, launches=1, instrumented=1)
CALLS = CollectiveProtocol(launches=1, warmup=1, iterations=1)
MESSAGES = LinkProtocol(warmup=1, round_trips=2, most_bytes=MIB, transfers=1)


@pytest.mark.parametrize(
    ("case", "protocol"),
    [
        (DDP, STEPS),
        (FSDP, STEPS),
        (fake_collectives.case(algorithm="tree", max_bytes=1 << 16), CALLS),
        (DDP, MESSAGES),
    ],
    ids=["ddp", "fsdp", "collectives", "links"],
)
def test_a_rank_imports_nothing_of_ours_or_torchs(case: Any, protocol: Any) -> None:
    spec = LaunchSpec.of(case, protocol, GUARD_S)
    seen = launch(spec, workload=Imports(workload_of(spec.kind)))
    assert seen.status is Status.OK, seen.failure
    assert {name for name in seen.facts["imports"] if name.split(".")[0] in ("parabench", "torch")} == set()
