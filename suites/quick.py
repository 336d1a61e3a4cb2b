"""Which configuration trains fastest on this machine? A sample, in minutes.

On the CPU and on several GPUs: which strategy, all-reduce algorithm and bucket size. On one GPU, where nothing needs a
second one: do torch.compile and activation checkpointing pay, for a small and a larger batch, in bfloat16 and float32?
"""

from parabench import Protocol, Sweep, sweep

ALGORITHMS = ("native", "ring", "tree", "two_level")


def over_ranks(**axes: int) -> list[Sweep]:
    """What several ranks can do."""
    return [
        sweep(strategy="single", **axes),
        sweep(strategy="ddp", algorithm=ALGORITHMS, bucket_mib=(0.5, 2, 25), world_size=2, **axes),
        sweep(strategy=("fsdp", "tp"), algorithm=("native", "ring"), world_size=2, **axes),
        sweep(strategy="ddp", algorithm=("native", "ring"), bucket_mib=25, world_size=4, **axes),
        sweep(strategy="fsdp", algorithm="native", world_size=4, **axes),
    ]


CASES = {
    # Short sequences keep the whole sample under two minutes on two cores.
    "cpu": over_ranks(seq_len=32),
    "gpus": over_ranks(),
    "one_gpu": sweep(
        strategy="single",
        global_batch=(2, 8),
        precision=("bf16-mixed", "ieee"),
        compile=(False, True),
        activation_checkpointing=(False, True),
    ),
}
PROTOCOL = {"cpu": Protocol(warmup=5, steps=20, budget_s=110)}
