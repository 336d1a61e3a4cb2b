"""Decide whether a case can pin NCCL to its algorithm, and the order of kernels. Free of torch.

For some communicators, NCCL disables an algorithm, and a pinned call fails with ncclInvalidUsage. The session then
leaves the case out (`session.runner`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from parabench.collectives import is_backends
from parabench.collectives.nccl import NCCL_ALGORITHMS, NCCL_PREFIX, is_nccls
from parabench.machine.versions import Nccl
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import AnyCase
from parabench.strategies import Group, entry_of

# Since this version, NCCL_ALGO takes one entry per operation.
PINS_SINCE = (2, 24)

LAUNCH_ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"

_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


def unpinned(case: AnyCase, nccl: Nccl) -> str | None:
    """Return why NCCL cannot be pinned to the case's algorithm, or why the pin would change nothing.

    Returns None if it can be tried, and for algorithms that are not NCCL's own.
    """
    if case.backend != "nccl" or not is_nccls(case.algorithm):
        return None
    if nccl.version is not None and nccl.version < PINS_SINCE:
        return f"algorithm {case.algorithm} needs NCCL 2.24 or later, which can pin one operation; here is {nccl}"
    own = case.algorithm.removeprefix(NCCL_PREFIX)
    called = {op for size, ops in communicators(case) or () if size > 1 for op in ops}
    if called and called.isdisjoint(NCCL_ALGORITHMS[own]):
        return (
            f"NCCL has {own} for {_listed(NCCL_ALGORITHMS[own])} only, but it calls {_listed(sorted(called))}: "
            "the pin would change nothing; use native"
        )
    return None


def launch_order(cases: Sequence[AnyCase], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment that prevents a deadlock of parabench's algorithms on several communicators."""
    # Our algorithms launch many short kernels. If ranks start them in different orders, two communicators of one device
    # may wait for each other. With this variable, NCCL 2.26 and later start kernels in the order in which the host
    # enqueued them, which is equal on all ranks. A value that the user has set is kept.
    if LAUNCH_ORDER in environ:
        return {}
    ours = [case for case in cases if case.backend == "nccl" and not is_backends(case.algorithm)]
    several = [among is None or sum(size > 1 for size, _ in among) > 1 for among in map(communicators, ours)]
    return {LAUNCH_ORDER: "1"} if any(several) else {}


def communicators(case: AnyCase) -> list[tuple[int, frozenset[str]]] | None:
    """Return rank 0's communicators in a case: the number of ranks and the operations called, of each.

    Returns None for a custom strategy, whose calls are unknown.
    """
    if isinstance(case, CollectiveCase):
        return [(case.world_size, frozenset({case.op.replace("_", "")}))]
    assert isinstance(case, Case)
    calls = entry_of(case.strategy).calls
    if calls is None:
        return None
    every = range(case.world_size)
    inside = case.tp_size or case.world_size
    node = case.ranks_per_node or case.world_size
    # Rank 0 is in the first row of a grid, which has consecutive ranks, and in its first column.
    ranks = {
        Group.ALL: every,
        Group.NODE: every[:node],
        Group.ACROSS_NODES: every[::node],
        Group.LAYERS: every[:inside],
        Group.ACROSS_LAYERS: every[::inside],
    }
    along_sequence = {Group.LAYERS: {"allgather", "reducescatter"}} if case.sequence_parallel else {}
    return [(len(ranks[group]), ops | along_sequence.get(group, set())) for group, ops in calls.items()]


def _listed(ops: Iterable[str]) -> str:
    return ", ".join(_OPS.get(op, op) for op in ops)
