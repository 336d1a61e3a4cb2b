"""What do more devices give: for one global batch (strong scaling), and for one batch per rank (weak scaling)?

It uses 1, 2, 4, ... devices, up to all devices of the machine.
"""

from parabench import sweep

STRATEGIES = ("ddp", "zero1", "fsdp", "tp", "local_only")

CASES = [
    # Strong and weak scaling both start with one device.
    sweep(strategy="single", global_batch=8),
    sweep(strategy=STRATEGIES, world_size="auto", global_batch=8),
    sweep(strategy=STRATEGIES, world_size="auto", batch_per_rank=8),
]
