"""Several algorithms in the same processes, each over connections of its own, so that they can be run in turns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from parabench.collectives import is_backends
from parabench.collectives.algorithm import make
from parabench.collectives.process_group import AlgorithmGroup

TIMEOUT_S = 60.0


def beside(algorithm: str, rank: int, ranks: int, ranks_per_node: int | None = None) -> Any:
    """A group of all ranks beside the default one, which has been joined before."""
    store = dist.PrefixStore(algorithm, dist.distributed_c10d._get_default_store())
    gloo = dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=TIMEOUT_S))
    if is_backends(algorithm):
        return gloo
    return AlgorithmGroup(gloo, dist.ProcessGroup.BackendType.GLOO, rank, ranks, make(algorithm, ranks_per_node))
