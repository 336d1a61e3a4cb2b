"""Which DDP bucket size is fastest, for each all-reduce algorithm? PyTorch's default is among them."""

from parabench import sweep

CASES = sweep(
    strategy="ddp",
    algorithm=("native", "ring", "tree", "two_level"),
    bucket_mib=(None, 0.25, 0.5, 1, 2, 4, 10, 25),
    world_size=2,
)
