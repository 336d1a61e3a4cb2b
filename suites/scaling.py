"""What do more devices give: for one global batch (strong scaling), and for one batch per rank (weak scaling)?

Up to what the machine has: 1, 2, 4, ... devices.
"""

from parabench import sweep

STRATEGIES = ("ddp", "zero1", "fsdp", "tp", "local_only")

CASES = [
    # Both kinds begin at this one.
    sweep(strategy="single", global_batch=8),
    sweep(strategy=STRATEGIES, world_size="auto", global_batch=8),
    sweep(strategy=STRATEGIES, world_size="auto", batch_per_rank=8),
]
