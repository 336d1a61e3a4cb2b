"""What does each strategy hold per rank, and is it what theory says?

Bytes are the same in every launch, so a few steps of one launch are enough. Do not use this suite for step times.
"""

from parabench import Protocol, sweep

CASES = [
    sweep(strategy="single"),
    sweep(strategy=("ddp", "zero1", "zero2", "fsdp"), world_size=(2, 4, 8)),
    sweep(strategy=("tp", "pp", "layer_split", "parameter_server"), world_size=(2, 4)),
    sweep(strategy="hsdp", ranks_per_node=2, world_size=(4, 8)),
    sweep(strategy=("tp_ddp", "tp_fsdp"), tp_size=2, world_size=(4, 8)),
    sweep(strategy=("deepspeed1", "deepspeed2", "deepspeed3"), world_size=(2, 4, 8)),
]
PROTOCOL = Protocol(warmup=2, steps=2, launches=1)
