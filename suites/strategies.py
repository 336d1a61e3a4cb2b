"""Which way to parallelise is fastest for this model and global batch, and what memory does each need?

All strategies do the same work. Strategies that this machine or model does not support are skipped with a reason.
"""

from parabench import sweep

CASES = [
    sweep(strategy="single"),
    sweep(strategy=("ddp", "zero1", "zero2", "fsdp", "tp"), world_size=(2, 4)),
    sweep(strategy="tp", sequence_parallel=True, world_size=(2, 4)),
    # Two dimensions need four ranks.
    sweep(strategy="hsdp", ranks_per_node=2, world_size=4),
    sweep(strategy=("tp_ddp", "tp_fsdp"), tp_size=2, world_size=4),
    sweep(strategy="pp", schedule=("gpipe", "1f1b"), microbatches=4, world_size=(2, 4)),
    # Two stages per rank: gpt-nano's four blocks are enough for two ranks.
    sweep(strategy="pp", schedule="interleaved", microbatches=4, world_size=2),
    sweep(strategy=("layer_split", "parameter_server", "parameter_server_async"), world_size=(2, 4)),
    # Not a way to train: it bounds the cost of communication.
    sweep(strategy="local_only", world_size=(2, 4)),
    sweep(strategy=("dp", "deepspeed1", "deepspeed2", "deepspeed3"), world_size=(2, 4)),
]
