"""Which all-reduce algorithm is fastest inside training: for gradients, for shards, for activations?

NCCL's algorithms need NCCL. Algorithms that need a network switch (nvls, collnet) are for `--set`.
"""

from parabench import sweep
from parabench.collectives import ON_ANY_BACKEND

CASES = sweep(
    strategy=("ddp", "fsdp", "tp"),
    algorithm=(*ON_ANY_BACKEND, "two_level(ring,tree)", "nccl:ring", "nccl:tree"),
    world_size=(2, 4),
)
