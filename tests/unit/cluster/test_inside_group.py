"""Which rank a process is, as torchrun, mpirun, mpiexec and srun say it; and which cases its group can run."""

from __future__ import annotations

import json
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from parabench.cli import main
from parabench.cluster.attached.coordinator import RankCoordinator, group_by_node
from parabench.cluster.attached.environment import LOOPBACK, ProcessEnvironment, WrongRank, group_of, speaks
from parabench.cluster.attached.hosts import cores_of, environment_of, node_records
from parabench.cluster.attached.in_process import SHARED, reset_process
from parabench.cluster.attached.join import join_group
from parabench.cluster.network import Route
from parabench.cluster.waiting import AGAIN_S, Waiting, numbered
from parabench.errors import UsageError
from parabench.launch.outcome import diagnose
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rendezvous import LaunchContext
from parabench.launch.results import MarkLayout, NodeResult, RankError, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import workload_of
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.session.attached import check_asked, exceeds_group, fitting
from parabench.session.request import Planned, TrainingRequest
from parabench.session.resume import begin_session, resume
from parabench.signals import signals_restored
from parabench.store.record import Launch, Status, utc_now
from parabench.store.results import load
from parabench.store.store import Store

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


GROUP = ProcessEnvironment(rank=0, size=2, local_rank=0, local_size=2, address=LOOPBACK, port=29500)


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
        (TORCHRUN | {"RANK": "x"}, "RANK is 'x', which is not a number"),
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


@pytest.mark.parametrize(
    "wrong",
    [
        # As mpirun --map-by node places the second of four: rank 0 finds nothing wrong.
        {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        {"RANK": "4", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_a_rank_says_what_is_wrong_with_it_alone(wrong):
    with pytest.raises(UsageError) as error:
        group_of(wrong | MEET)
    assert isinstance(error.value, WrongRank)
    assert speaks(wrong, error.value)


def test_one_rank_of_a_host_says_what_all_of_them_find():
    """MASTER_ADDR and the suite's file may be missing on one host alone."""
    error = UsageError("MASTER_ADDR is not set")
    assert speaks(PALS | {"PMI_RANK": "2", "PMI_LOCAL_RANK": "0"}, error)
    assert not speaks(PALS, error)
    assert speaks({}, error)


def test_a_long_wait_is_told_of_now_and_then(monkeypatch):
    now, said, first_s = [100.0], [], 5.0
    monkeypatch.setattr("parabench.cluster.waiting.time.monotonic", lambda: now[0])
    waiting = Waiting(said.append, 20.0, first_s)
    for after in (0.0, first_s - 1, first_s, first_s + 1, first_s + AGAIN_S - 1, first_s + AGAIN_S):
        now[0] = 100.0 + after
        assert waiting.left_s == 20.0 - after
        waiting.still(lambda after=after: f"{after:g}")
    assert said == ["5", "20"]


@pytest.mark.parametrize(
    ("numbers", "words"), [([3], "rank 3"), ([1, 2], "ranks 1, 2"), ([1, 4, 5, 6, 7, 9], "ranks 1, 4-7, 9")]
)
def test_many_ranks_in_few_words(numbers, words):
    assert numbered("rank", numbers) == words


@pytest.fixture
def as_rank(monkeypatch):
    """The command, as a process in that environment; what it leaves in this one is taken back."""
    for name in ("MASTER_ADDR", "MASTER_PORT", *TORCHRUN, *OPEN_MPI, *HYDRA, *PALS, *SRUN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("parabench.commands.run.AFTER_RANK_0_S", 0.0)
    return lambda environ: CliRunner().invoke(main, ["worker", "quick"], env=environ)


def test_a_rank_that_is_wrong_alone_does_not_end_in_silence(as_rank):
    ended = as_rank({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    assert ended.exit_code == 2
    assert ended.output.startswith("parabench: rank 1 of 4 is number 0 of 2 on its host: every host must have as many")
    assert len(ended.output.splitlines()) == 1


def test_what_the_first_rank_of_the_host_says_the_others_do_not(as_rank):
    others = as_rank(PALS)
    assert (others.exit_code, others.output) == (2, "")
    first = as_rank(PALS | {"PMI_RANK": "2", "PMI_LOCAL_RANK": "0"})
    assert first.exit_code == 2
    assert first.output.startswith("parabench: MASTER_ADDR is not set")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture
def _in_no_time(monkeypatch):
    for module in ("join", "coordinator"):
        monkeypatch.setattr(f"parabench.cluster.attached.{module}.BEGIN_S", 0.01)
        monkeypatch.setattr(f"parabench.cluster.attached.{module}.FIRST_S", 0.0)


@pytest.mark.usefixtures("_in_no_time")
@pytest.mark.parametrize("found", [[LOOPBACK], []])
def test_a_rank_that_does_not_find_rank_0_says_where_it_looks(monkeypatch, free_port, found):
    monkeypatch.setattr("parabench.cluster.shared_store.addresses_of", lambda name: found)
    said: list[str] = []
    with pytest.raises(WrongRank, match="rank 1 did not reach rank 0 at "):
        join_group(replace(GROUP, rank=1, local_rank=1, port=free_port), said.append)
    where = f"127.0.0.1 port {free_port}"
    why = f"{where}: Connection refused" if found else "127.0.0.1 resolves to no address"
    assert said == [f"rank 1 tries to reach rank 0 at {where}, for up to 0.01 s ({why})"]


@pytest.mark.usefixtures("_in_no_time")
def test_what_listens_and_is_no_store_is_tried_again(monkeypatch):
    # A thread that torch still keeps waiting when the interpreter ends would abort it.
    monkeypatch.setattr("parabench.launch.store_client.CONNECT", timedelta(milliseconds=100))
    with socket.create_server((LOOPBACK, 0)) as stranger:
        group = replace(GROUP, rank=1, local_rank=1, port=stranger.getsockname()[1])
        with pytest.raises(WrongRank, match="does not answer as a session"):
            join_group(group, lambda line: None)


@pytest.mark.usefixtures("_in_no_time")
def test_rank_0_says_for_whom_it_waits(monkeypatch, free_port):
    monkeypatch.setattr("parabench.cluster.attached.coordinator.HostMonitor", lambda: None)
    said: list[str] = []
    group = replace(GROUP, size=6, local_size=6, port=free_port)
    shared = join_group(group, said.append)
    client = shared.client()
    client.put_blob("join/1", {"number": 2, "host": "b", "address": "", "facts": {}, "about": {}})
    client.call("add", "joining", 1)
    lead = RankCoordinator(shared, group, {}, {"host": "a"}, said.append)
    with signals_restored(), pytest.raises(UsageError, match="ranks 1, 3-5 of 6 did not come within"):
        lead.wait_for_ranks()
    assert said == [f"rank 0 waits at 127.0.0.1 port {free_port} for ranks 1, 3-5 of 6, for up to 0.01 s"]
    lead.close(2, "")
    assert client.get("answer/1") == {"rejected": "", "code": 2, "nonce": ""}
    client.end()


def test_a_launch_of_rank_0_alone_keeps_its_process_to_no_loopback(monkeypatch, free_port):
    """The reference of a session on several hosts comes first, and what it sets is still set when they meet."""
    seen: list[dict[str, str]] = []

    class Here:
        over = threading.Event()

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None: ...
        def run(self, context: LaunchContext, deadline_s: float) -> NodeResult:
            seen.append(dict(context.environment))
            return part(0)

    monkeypatch.setattr("parabench.cluster.attached.coordinator.HostMonitor", lambda: None)
    monkeypatch.setattr("parabench.cluster.attached.coordinator.InProcessLaunch", Here)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    group = replace(GROUP, local_size=1, port=free_port)
    shared = replace(join_group(group, print), route=Route("10.0.0.1", "eth0"))
    lead = RankCoordinator(shared, group, {}, {"host": "a"}, print)
    single = Case(strategy="single", device="cpu", backend="gloo")
    lead.run(LaunchSpec.of(single, Protocol(), 60.0), workload_of("training"))
    assert seen == [{"GLOO_SOCKET_IFNAME": "eth0"}]
    lead.close(0, "")


ONE = Case(strategy="ddp", world_size=2, device="cpu", backend="gloo")
PLAN = Plan(cases=(ONE,), skipped=(), protocol=Protocol(), seed=0)


def asked(store: Store, argv: list[str]) -> TrainingRequest:
    return TrainingRequest.of(suite="mine", argv=argv, out=store.path.parent)


@pytest.fixture
def begun(tmp_path) -> Iterator[Callable[..., Store]]:
    """A store with a session that was begun by that command, with so many launches."""
    with Store.open_or_create(tmp_path / "results.db") as store:

        def begin(by: str, launches: int = 1) -> Store:
            argv = ["parabench", by, "mine.py", "--set", "seq_len=8"]
            opened = begin_session(
                store, asked(store, argv), Planned(plan=PLAN, suite="mine", question="?"), Machine(cores=2)
            )
            if by == "worker":
                store.add_finding(opened.session_id, SHARED)
            for block in range(launches):
                store.append(opened.session_id, Launch(ONE, Status.OK, utc_now(), wall_s=1.0, block=block))
            return store

        yield begin


def test_launches_of_a_group_and_fresh_ones_are_not_pooled(begun):
    with pytest.raises(UsageError, match="not to be pooled with them; resume it with 'parabench run --resume --out"):
        resume(begun("run"), PLAN, attached=True)
    again = "resume it in such a group with 'parabench worker mine.py --set seq_len=8 --resume --out /"
    for plan in (PLAN, None):
        with pytest.raises(UsageError, match=again):
            resume(begun("worker"), plan)


def test_each_goes_on_with_its_own(begun):
    assert resume(begun("run"), None).done == {(ONE.id, 0)}
    assert resume(begun("worker", launches=2), PLAN, attached=True).done == {(ONE.id, 0), (ONE.id, 1)}
    # Where there is no launch yet, there is nothing to mix.
    assert resume(begun("run", launches=0), PLAN, attached=True).done == set()
    with pytest.raises(UsageError, match="planned otherwise; resume it with 'parabench worker mine"):
        resume(begun("worker"), replace(PLAN, seed=1), attached=True)


def test_a_group_announces_itself_as_torchrun_would():
    environ = dict(OPEN_MPI)
    group_of(environ).announce(environ)
    again = group_of({name: value for name, value in environ.items() if name not in OPEN_MPI})
    assert again == group_of(OPEN_MPI)


def case(**fields: Any) -> Case:
    return Case(**({"strategy": "ddp", "world_size": 2, "device": "cpu", "backend": "gloo"} | fields))


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
    reason = exceeds_group(case(**fields), GROUP)
    assert reason is None if why is None else reason is not None and reason.startswith(why)


def test_cases_that_do_not_fit_are_skipped_with_their_reason():
    fits, large = case(), case(world_size=4)
    plan = Plan(cases=(fits, large), skipped=(), protocol=Protocol(), seed=0)
    left = fitting(plan, GROUP)
    assert left.cases == (fits,)
    assert [each.case for each in left.skipped] == [large]
    with pytest.raises(UsageError, match="nothing to run in this group: the group has 2 processes"):
        fitting(Plan(cases=(large,), skipped=(), protocol=Protocol(), seed=0), GROUP)


@pytest.mark.parametrize(("axes", "wrong"), [("4", 4), ("2,4", 4), ("1", 1)])
def test_a_size_that_is_asked_for_is_the_groups(axes, wrong):
    with pytest.raises(UsageError) as error:
        check_asked(["model=mlp", f"world_size={axes}"], GROUP)
    assert str(error.value).startswith(f"world_size {wrong} is not this group's: the group has 2 processes; use")


@pytest.mark.parametrize("axes", [["world_size=auto"], ["world_size=1,2"], ["world_size=0"], ["model=mlp"], ["odd"]])
def test_what_the_planner_judges_is_left_to_it(axes):
    check_asked(axes, GROUP)


def test_one_process_is_one():
    alone = ProcessEnvironment(rank=0, size=1, local_rank=0, local_size=1, address=LOOPBACK, port=29500)
    assert exceeds_group(case(), alone) == "the group has 1 process; use parabench run for other world sizes"


def bound(*cores: int, limit: float | None = None, **environment: Any) -> dict[str, Any]:
    return {
        "cores": list(cores),
        "core_limit": limit,
        "environment": environment,
        "devices": [],
        "devices_reason": None,
    }


def test_cores_that_ranks_are_bound_to_are_counted_together():
    assert cores_of([bound(0, 1), bound(2, 3)]) == 4
    assert cores_of([bound(0, 1), bound(0, 1)]) == 2
    assert cores_of([bound(0, 1, limit=1.5), bound(2, 3, limit=1.5)]) == 2
    # mpirun binds each rank to one; what is recorded of a host is what its ranks have together.
    hosts = [[bound(0), bound(1)], [bound(4, host="b", cores=1), bound(6)]]
    assert node_records(hosts) == [{"node": 0}, {"node": 1, "host": "b", "cores": 2}]
    assert node_records(hosts[:1]) == []


def test_all_hosts_of_a_group_are_recorded(tmp_path):
    hosts = [[bound(0, host="a")], [bound(0, host="b")]]
    with Store.open_or_create(tmp_path / "results.db") as store:
        about = environment_of(hosts[0])
        machine = Machine(cores=1, nodes=2, ranks_per_node=1)
        planned = Planned(plan=PLAN, suite="mine", question="?")
        begin_session(store, asked(store, ["parabench"]), planned, machine, nodes=node_records(hosts), about=about)
    (session,) = load(tmp_path / "results.db").session.to_dict("records")
    recorded = json.loads(session["environment"])["nodes"]
    assert [(each["node"], each["host"]) for each in recorded] == [(0, "a"), (1, "b")]


def test_a_process_that_stays_forgets_its_peak(monkeypatch, tmp_path):
    block = np.ones(8 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del block
    assert reset_process()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before
    # Where the kernel does not let it, that is known: the peak would be another launch's.
    monkeypatch.setattr("parabench.cluster.attached.in_process.CLEAR_REFS", tmp_path / "gone" / "clear_refs")
    assert not reset_process()


def test_a_process_that_stays_waits_for_its_own_device_in_the_thread_that_waits(monkeypatch):
    """The current device is a thread's own: the main thread's is still device 0."""
    asked: list[Any] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty"))
    reset_process()
    assert asked == [torch.device("cuda", 3), "synchronize", "empty"]


def silent(rank: int, gone: int | None = None) -> NodeResult:
    layout = MarkLayout(columns=5, moments=5, rows=3, position=str)
    return NodeResult.silent(rank // 2, f"host{rank // 2}", range(rank, rank + 1), layout, RankReport, rank=gone)


def part(rank: int, **result: Any) -> NodeResult:
    ok = "error" not in result
    of = silent(rank)
    of.outcome, of.reports, of.tails = (
        ProcessOutcome(ok=ok),
        [RankReport(rank=rank, **result)],
        [] if ok else [f"tail {rank}"],
    )
    of.began_s = 10.0 + rank
    return of


def test_parts_of_ranks_become_parts_of_nodes():
    first, second = group_by_node([part(rank) for rank in range(4)], 2)
    assert (first.node, list(first.ranks), first.began_s, first.outcome) == (0, [0, 1], 10.0, ProcessOutcome(ok=True))
    assert (second.node, list(second.ranks), second.host) == (1, [2, 3], "host1")
    assert diagnose([first, second], str, 60.0) == (Status.OK, None)


def test_the_rank_that_said_nothing_is_the_cause():
    echo = RankError(1.0, "RuntimeError: Connection closed by peer", "", False)
    gone = silent(1, 1)
    nodes = group_by_node([part(0, error=echo), gone], 2)
    assert nodes[0].tails == ["tail 0", ""]
    status, failure = diagnose(nodes, str, 60.0)
    assert status is Status.CRASHED
    assert failure is not None
    assert str(failure) == "rank 1: ended without a trace"
