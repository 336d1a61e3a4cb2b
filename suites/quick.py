"""Which configuration trains fastest on this machine? A sample, in minutes.

On the CPU and on several GPUs, it compares strategies, all-reduce algorithms and bucket sizes. On one GPU, it compares
torch.compile in bfloat16, and activation checkpointing in bfloat16 and float32.
"""

from parabench import Protocol, Sweep, sweep

ALGORITHMS = ("native", "ring", "tree", "two_level")


def over_ranks(**axes: int) -> list[Sweep]:
    """Return the configurations for several ranks."""
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
    # Starting processes and compiling takes longer than the steps, so there are few configurations.
    "one_gpu": [
        sweep(strategy="single", precision=("bf16-mixed", "ieee"), activation_checkpointing=(False, True)),
        sweep(strategy="single", precision="bf16-mixed", compile=True),
    ],
}
PROTOCOL = {"cpu": Protocol(warmup=5, steps=20, budget_s=110), "one_gpu": Protocol(budget_s=180)}
