"""Which all-reduce algorithm is fastest inside training: for gradients, for shards, for activations?"""

from parabench.suite import sweep

CASES = sweep(
    strategy=("ddp", "fsdp", "tp"),
    algorithm=("native", "ring", "tree", "two_level"),
    world_size=(2, 4),
)
