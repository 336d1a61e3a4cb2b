"""Which all-reduce algorithm is fastest inside training: for gradients, for shards, for activations?

NCCL's own are left out where NCCL is not; those that need a switch that reduces (nvls, collnet) are for `--set`.
"""

from parabench import sweep

CASES = sweep(
    strategy=("ddp", "fsdp", "tp"),
    algorithm=(
        "native",
        "ring",
        "tree",
        "halving_doubling",
        "parameter_server",
        "two_level",
        "two_level(ring,tree)",
        "nccl:ring",
        "nccl:tree",
    ),
    world_size=(2, 4),
)
