"""Every algorithm, through its process group, gives the results that torch computes from all inputs."""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

import ranks_helpers
from guard import GUARD_S
from parabench.collectives.async_queue import ThreadQueue
from parabench.collectives.tree import Node, double_tree
from parabench.collectives.two_level import levels
from parabench.collectives.wire import Wire
from parabench.launch.processes import start_server
from parabench.plan.case import Case
from ranks_helpers import Check


def case(size: int, algorithm: str, ranks_per_node: int | None = None) -> Case:
    return Case(algorithm=algorithm, world_size=size, ranks_per_node=ranks_per_node, device="cpu", backend="gloo")


def name(each: object) -> str | None:
    if not isinstance(each, Case):
        return None
    node = "" if each.ranks_per_node is None else f" by {each.ranks_per_node}"
    return f"{each.algorithm}{node} of {each.world_size}"


# The simulated wire (test_simulated_collectives) has every algorithm at every number of ranks, and no carrier.
RING, TREE, HALVING = (case(2, name) for name in ("ring", "tree", "halving_doubling"))
ONE_A_NODE, ONE_NODE = case(2, "two_level", 1), case(2, "two_level", 2)
TREE_OF_3, TWO_LEVEL = case(3, "tree"), case(4, "two_level", 2)
OF_3 = (case(3, "ring"), TREE_OF_3, case(3, "parameter_server"))
OF_4 = (case(4, "halving_doubling"), TWO_LEVEL, case(4, "two_level(ring,tree)", 2))

Checked = Callable[[Case], Path]

# The checks of each case, in order. Calls are counted from 0, and the last two checks cut all later data into small
# pieces.
CHECKS: dict[Check, Sequence[Case]] = {
    ranks_helpers.recorded: (RING, TREE, ONE_A_NODE),
    ranks_helpers.unfinished: (RING, TREE, ONE_A_NODE),
    ranks_helpers.refusals: (RING, TREE_OF_3, ONE_NODE),
    ranks_helpers.unusual_callers: (RING, TREE_OF_3, HALVING),
    ranks_helpers.large_halves: (RING, ONE_A_NODE),
    ranks_helpers.other_forms: (RING, HALVING, ONE_NODE, *OF_3),
    ranks_helpers.reductions_and_gathers: (case(1, "ring"), RING, TREE, *OF_3, *OF_4),
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """Run all checks of a case in one group of ranks; return the folder of their reports."""

    @cache
    def checked(each: Case) -> Path:
        folder = tmp_path_factory.mktemp("group")
        os.mkfifo(folder / "pipe")
        args = {ranks_helpers.recorded: (each.algorithm,), ranks_helpers.unfinished: (folder / "pipe",)}
        checks = [(check, args.get(check, ())) for check, cases in CHECKS.items() if each in cases]
        ranks_helpers.complaints_of_ranks(ranks_helpers.one_by_one, each, folder, checks)
        return folder

    return checked


def complaints(folder: Path, check: Check) -> list[str]:
    """Return the complaints of all ranks, each with the rank's file."""
    told = [(path.stem, each) for path in sorted(folder.glob("rank*.json")) for each in json.loads(path.read_text())]
    return [f"{rank}: {each}" for rank, each in told if each.startswith(f"{check.__name__}: ")]


@pytest.mark.parametrize(
    ("check", "each"),
    [
        pytest.param(check, each, id=f"{check.__name__} {name(each)}")
        for check, cases in CHECKS.items()
        for each in cases
    ],
)
def test_ranks_get_the_results_that_torch_computes(check: Check, each: Case, checked: Checked) -> None:
    assert complaints(checked(each), check) == []


@pytest.mark.parametrize("each", [RING, TREE_OF_3, TWO_LEVEL], ids=name)
def test_ranks_get_an_error_when_a_peer_dies(each: Case, tmp_path: Path) -> None:
    start_server()
    fork = multiprocessing.get_context("forkserver")
    ranks = [fork.Process(target=ranks_helpers.dying, args=(r, each, tmp_path)) for r in range(each.world_size)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(GUARD_S)
        assert [process.exitcode for process in ranks] == [0] * (each.world_size - 1) + [-signal.SIGKILL]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    for rank in range(each.world_size - 1):
        told = (tmp_path / f"told{rank}").read_text()
        assert f"{each.algorithm} all_reduce on rank {rank} of {each.world_size}: " in told


# -- the group's own thread -----------------------------------------------------------------------------------------


def test_jobs_keep_their_order_whoever_does_them() -> None:
    queue, go_on, done = ThreadQueue("test"), threading.Event(), []

    def first() -> None:
        go_on.wait()
        done.append("first")

    works = [queue.run(first, [torch.zeros(1)], "first")]
    works += [queue.run(lambda: done.append("second"), [torch.zeros(1)], "second")]
    threading.Thread(target=go_on.set).start()
    queue.run(lambda: done.append("third"), [torch.zeros(1)], "third", waits=True)
    assert done == ["first", "second", "third"]
    assert all(work.wait() for work in works)
    queue.stop()


def test_failure_is_raised_everywhere_and_ends_later_jobs() -> None:
    """If a later job sent something, peers would use it for the job that failed."""
    queue, done = ThreadQueue("test"), []

    def fail() -> None:
        raise ValueError("no such peer")

    works = [queue.run(fail, [torch.zeros(1)], "the first")]
    works += [queue.run(lambda: done.append("second"), [torch.zeros(1)], "the second")]
    for work in works:
        chained = work.get_future().then(lambda future: future.value())
        for wait in (work.wait, chained.wait):
            with pytest.raises(RuntimeError, match="the first: ValueError: no such peer"):
                wait()
    assert done == []
    queue.stop()


# -- pure functions -------------------------------------------------------------------------------------------------


def assert_spans(nodes: tuple[Node, ...]) -> None:
    """Check that there is one root, that it reaches all ranks, and that parents and children agree."""
    (root,) = (rank for rank, node in enumerate(nodes) if node.parent is None)
    reached, border = {root}, [root]
    while border:
        rank = border.pop()
        for child in nodes[rank].children:
            assert nodes[child].parent == rank
            assert child not in reached
            reached.add(child)
            border.append(child)
    assert reached == set(range(len(nodes)))


def test_double_tree_has_no_rank_that_is_inner_in_both() -> None:
    for size in range(1, 65):
        first, second = double_tree(size)
        for nodes in (first, second):
            assert_spans(nodes)
            assert all(len(node.children) <= 2 for node in nodes)
        assert not [rank for rank in range(size) if first[rank].children and second[rank].children], size


@pytest.mark.parametrize("ranks_per_node", [2, 4, None])
def test_a_group_that_does_not_divide_into_nodes_is_one_node(ranks_per_node: int | None) -> None:
    inner, outer = levels(Wire(None, range(3), 1), ranks_per_node)
    assert (inner.size, inner.rank, outer.size, outer.rank) == (3, 1, 1, 0)
