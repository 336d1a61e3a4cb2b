"""Which rank a process is, as torchrun, mpirun, mpiexec and srun say it; and which cases its group can run."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

from parabench.case import Case, Protocol
from parabench.cluster.inside.fresh import freshen
from parabench.cluster.inside.group import LOOPBACK, Group, group_of, rank_in
from parabench.cluster.inside.merged import by_node, silent
from parabench.commands.worker_session import cores_of, fitting, misfit, nodes_of
from parabench.errors import UsageError
from parabench.judgement import judge
from parabench.part import Part
from parabench.plan import Plan
from parabench.ranks import Ended
from parabench.record import Status

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
MEET = {"MASTER_ADDR": "host0", "MASTER_PORT": "29501"}
# As mpirun 4.1.4 sets them.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "1803878401",
    "PMIX_NAMESPACE": "1803878401",
    "PMIX_RANK": "1",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
PALS = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}
SRUN = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "rack[1-2]n03",
    "SLURM_JOB_ID": "77",
}


def seen(environ: dict[str, str]) -> tuple[int, int, int, int]:
    group = group_of(environ)
    return group.rank, group.size, group.local_rank, group.local_size


def test_torchruns_own():
    group = group_of({**TORCHRUN, **MEET, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job"})
    assert (group.rank, group.size, group.local_rank, group.local_size) == (5, 8, 1, 4)
    assert (group.nodes, group.node) == (2, 1)
    assert (group.address, group.port, group.agents, group.name) == ("host0", 29501, True, "job/none")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [(OPEN_MPI, (1, 2, 1, 2)), (HYDRA, (3, 4, 3, 4)), (PALS | MEET, (3, 4, 1, 2)), (SRUN, (2, 4, 0, 2))],
)
def test_what_other_launchers_set(environ, expected):
    assert seen(environ) == expected


def test_the_innermost_launcher_counts():
    """torchrun started by mpirun, mpirun within a Slurm job; a pod has RANK without LOCAL_RANK."""
    assert seen({**SRUN, **OPEN_MPI, **TORCHRUN, **MEET}) == (5, 8, 1, 4)
    assert seen({**SRUN, **OPEN_MPI}) == (1, 2, 1, 2)
    assert seen({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "7"}) == (1, 2, 1, 2)


def test_ranks_of_one_host_meet_on_loopback():
    assert group_of(OPEN_MPI | {"MASTER_ADDR": "host0"}).address == LOOPBACK
    # torchrun's agent listens where it says.
    local = {**TORCHRUN, "RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert group_of(local | MEET).address == "host0"
    assert group_of(SRUN).address == "rack1n03"


def test_two_jobs_of_a_host_have_ports_of_their_own():
    ports = {group_of(OPEN_MPI | {"PMIX_NAMESPACE": job}).port for job in ("1803878401", "1689583617", "prterun-a-1@1")}
    assert len(ports) == 3
    assert all(15000 <= port < 30000 for port in ports)
    assert group_of(OPEN_MPI | MEET).port == 29501
    assert group_of(HYDRA).port == 29500


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "torchrun --nproc-per-node 2 -m parabench worker SUITE"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "no group of processes is here"),
        (TORCHRUN | {"RANK": "x"}, "RANK is 'x', which is no number"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is '-1'"),
        (TORCHRUN | {"RANK": "8"}, "this is rank 8 of 8"),
        (PALS, "mpirun -x MASTER_ADDR=host0"),
        (TORCHRUN | {"LOCAL_RANK": "0"}, "mpirun --map-by slot"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "2"}, "every host must have as many ranks"),
        (OPEN_MPI | {"MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_remedy(environ, said):
    with pytest.raises(UsageError) as error:
        group_of(environ)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rank_is_known_as_far_as_it_can_be():
    assert rank_in(PALS) == 3
    assert rank_in({}) == 0


def test_a_group_announces_itself_as_torchrun_would():
    environ = dict(OPEN_MPI)
    group_of(environ).announce(environ)
    again = group_of({name: value for name, value in environ.items() if name not in OPEN_MPI})
    assert again == group_of(OPEN_MPI)


def case(**fields: Any) -> Case:
    return Case(**({"strategy": "ddp", "world_size": 2, "device": "cpu", "backend": "gloo"} | fields))


GROUP = Group(rank=0, size=2, local_rank=0, local_size=2, address=LOOPBACK, port=29500)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, None),
        ({"world_size": 4}, "the group has 2 processes"),
        ({"backend": "nccl", "device": "cuda", "algorithm": "nccl:tree"}, "NCCL is pinned"),
        ({"strategy": "dp"}, "dp drives all devices from one process"),
        ({"strategy": "deepspeed1"}, "deepspeed1 keeps its first process group"),
    ],
)
def test_what_a_group_that_is_there_cannot_run(fields, why):
    reason = misfit(case(**fields), GROUP)
    assert reason is None if why is None else reason is not None and reason.startswith(why)


def test_cases_that_do_not_fit_are_skipped_with_their_reason():
    fits, large = case(), case(world_size=4)
    plan = Plan(cases=(fits, large), skipped=(), protocol=Protocol(), seed=0)
    left = fitting(plan, GROUP)
    assert left.cases == (fits,)
    assert [each.case for each in left.skipped] == [large]
    with pytest.raises(UsageError, match="nothing to run in this group: the group has 2 processes"):
        fitting(Plan(cases=(large,), skipped=(), protocol=Protocol(), seed=0), GROUP)


def bound(*cores: int, limit: float | None = None, **environment: Any) -> dict[str, Any]:
    return {"cores": list(cores), "core_limit": limit, "environment": environment}


def test_cores_that_ranks_are_bound_to_are_counted_together():
    assert cores_of([bound(0, 1), bound(2, 3)]) == 4
    assert cores_of([bound(0, 1), bound(0, 1)]) == 2
    assert cores_of([bound(0, 1, limit=1.5), bound(2, 3, limit=1.5)]) == 2
    # mpirun binds each rank to one; what is recorded of a host is what its ranks have together.
    hosts = [[bound(0), bound(1)], [bound(4, host="b", cores=1), bound(6)]]
    assert nodes_of(hosts) == [{"node": 1, "host": "b", "cores": 2}]


def test_a_process_that_stays_forgets_its_peak(monkeypatch, tmp_path):
    block = np.ones(8 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del block
    assert freshen()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before
    # Where the kernel does not let it, that is known: the peak would be another launch's.
    monkeypatch.setattr("parabench.cluster.inside.fresh.CLEAR_REFS", tmp_path / "gone" / "clear_refs")
    assert not freshen()


def part(rank: int, **result: Any) -> Part:
    ok = "error" not in result
    of = silent(rank, rank // 2, f"host{rank // 2}", np.full((3, 5), np.nan))
    of.ended, of.results, of.tails = Ended(ok=ok), [{"rank": rank, **result}], [] if ok else [f"tail {rank}"]
    of.began_s = 10.0 + rank
    return of


def test_parts_of_ranks_become_parts_of_nodes():
    first, second = by_node({3: part(3), 0: part(0), 2: part(2), 1: part(1)}, 2)
    assert (first.node, list(first.ranks), first.began_s, first.ended) == (0, [0, 1], 10.0, Ended(ok=True))
    assert (second.node, list(second.ranks), second.host) == (1, [2, 3], "host1")
    assert judge([first, second], str, 60.0) == (Status.OK, None)


def test_the_rank_that_said_nothing_is_the_cause():
    echo = {"at": 1.0, "message": "RuntimeError: Connection closed by peer", "traceback": "", "oom": False}
    gone = silent(1, 0, "host0", np.full((3, 5), np.nan))
    nodes = by_node({0: part(0, error=echo), 1: gone}, 2)
    assert nodes[0].tails == ["tail 0", ""]
    status, failure = judge(nodes, str, 60.0)
    assert status is Status.CRASHED
    assert failure is not None
    assert str(failure) == "rank 1: ended without a trace"
