"""What do more devices give? One global batch on 1, 2, 4, ... devices, up to what the machine has."""

from parabench.suite import sweep

CASES = [
    sweep(strategy="single"),
    sweep(strategy=("ddp", "fsdp", "tp"), world_size="auto"),
]
