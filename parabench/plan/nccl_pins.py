"""Decide whether NCCL can be pinned to the algorithm of a case. Free of torch.

For some communicators, NCCL disables an algorithm, and a pinned call fails with ncclInvalidUsage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from parabench.collectives import is_backends
from parabench.collectives.nccl import NCCL_ALGORITHMS, NCCL_PREFIX, is_nccls
from parabench.machine.versions import Nccl
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import AnyCase
from parabench.strategies import Group, entry_of

# The rules are from NCCL 2.23 to 2.30: `src/graph/tuning.cc` (ncclTopoTuneModel, ncclPatEnable), `src/enqueue.cc`
# (updateCollCostTable, ncclNvlsSupported) and "Environment variables" (NCCL_ALGO, NCCL_COLLNET_NODE_THRESHOLD).

# Since this version, NCCL_ALGO takes one entry per operation.
PINS_SINCE = (2, 24)

# Algorithms that have no averages. NCCL averages by a separate reduction, which multiplies by 1/n before it sums.
SUMS_ONLY = ("nvls", "nvlstree", "pat")

# Algorithms for several nodes only.
BETWEEN_NODES = ("nvlstree", "collnetdirect", "collnetchain")

# 0 disables PAT, 1 enables it; 2, the default, enables it for one GPU per node (ncclPatEnable).
PAT = "NCCL_PAT_ENABLE"

LAUNCH_ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"

_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


class Communicator(NamedTuple):
    """The number of ranks and nodes of an NCCL communicator, and its calls: {operation: whether it averages}."""

    size: int
    nodes: int
    calls: Mapping[str, bool]


def unpinned(case: AnyCase, nccl: Nccl, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why NCCL cannot be pinned to the case's algorithm, or why the pin would change nothing.

    Returns None if it can be tried, and for algorithms that are not NCCL's own.
    """
    if case.backend != "nccl" or not is_nccls(case.algorithm):
        return None
    if nccl.version is not None and nccl.version < PINS_SINCE:
        return f"algorithm {case.algorithm} needs NCCL 2.24 or later, which can pin one operation; here is {nccl}"
    own = case.algorithm.removeprefix(NCCL_PREFIX)
    among = [each for each in communicators(case) or () if each.size > 1]
    called = {op for each in among for op in each.calls}
    if among and called.isdisjoint(NCCL_ALGORITHMS[own]):
        return (
            f"NCCL has {own} for {_listed(NCCL_ALGORITHMS[own])} only, and this case calls {_listed(sorted(called))}: "
            "the pin would change nothing; use native"
        )
    pinned = [each for each in among if not set(each.calls).isdisjoint(NCCL_ALGORITHMS[own])]
    return next((why for each in pinned if (why := _lacking(own, each, environ.get(PAT, "2"))) is not None), None)


def _lacking(own: str, among: Communicator, pat: str) -> str | None:
    """Return why NCCL disables the algorithm `own` for this communicator; None if it does not."""
    averaged = [op for op in NCCL_ALGORITHMS[own] if among.calls.get(op)]
    rules = {
        "between nodes only": own in BETWEEN_NODES and among.nodes == 1,
        f"not with {PAT}=0": own == "pat" and pat == "0",
        "for one GPU a node only": own == "pat" and pat == "2" and among.nodes != among.size,
        f"for sums, not for averages, as in {_listed(averaged)}": own in SUMS_ONLY and bool(averaged),
    }
    rule = next((rule for rule, broken in rules.items() if broken), None)
    here = f"{among.size} ranks on {'one node' if among.nodes == 1 else f'{among.nodes} nodes'}"
    return None if rule is None else f"NCCL has {own} {rule}, and here are {here}; use native or nccl:ring"


def launch_order(cases: Sequence[AnyCase], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment that prevents a deadlock of parabench's algorithms on several communicators."""
    # Our algorithms launch many short kernels. If ranks start them in different orders, two communicators of one device
    # may wait for each other. With this variable, NCCL 2.26 and later start kernels in the order in which the host
    # enqueued them, which is equal on all ranks. A value that the user has set is kept.
    if LAUNCH_ORDER in environ:
        return {}
    ours = [case for case in cases if case.backend == "nccl" and not is_backends(case.algorithm)]
    several = [among is None or sum(each.size > 1 for each in among) > 1 for among in map(communicators, ours)]
    return {LAUNCH_ORDER: "1"} if any(several) else {}


def communicators(case: AnyCase) -> list[Communicator] | None:
    """Return rank 0's communicators in the steps of a case; None for a custom strategy, whose calls are unknown."""
    if isinstance(case, CollectiveCase):
        return [Communicator(case.world_size, case.nodes, {case.op.replace("_", ""): case.redop == "avg"})]
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
    along_sequence = {"allgather": False, "reducescatter": False} if case.sequence_parallel else {}
    per_node = case.world_size // case.nodes
    return [
        Communicator(
            size=len(ranks[group]),
            nodes=len({rank // per_node for rank in ranks[group]}),
            calls={**ops, **(along_sequence if group is Group.LAYERS else {})},
        )
        for group, ops in calls.items()
    ]


def _listed(ops: Iterable[str]) -> str:
    return ", ".join(_OPS.get(op, op) for op in ops)
