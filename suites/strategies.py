"""Which way to parallelise is fastest for this model and global batch, and what memory does each need?"""

from parabench.suite import sweep

CASES = [
    sweep(strategy="single"),
    sweep(strategy=("ddp", "fsdp", "tp"), world_size=(2, 4)),
]
