"""Which strategy, all-reduce algorithm and bucket size is fastest on this machine? A sample, in minutes."""

from parabench.case import Protocol
from parabench.suite import sweep

ALGORITHMS = ("native", "ring", "tree", "two_level")

# Short sequences keep the whole sample under three minutes on two cores.
CASES = [
    sweep(strategy="single", seq_len=32),
    sweep(strategy="ddp", algorithm=ALGORITHMS, bucket_mib=(0.5, 2, 25), world_size=2, seq_len=32),
    sweep(strategy="ddp", algorithm=ALGORITHMS, bucket_mib=25, world_size=4, seq_len=32),
    sweep(strategy=("fsdp", "tp"), algorithm=ALGORITHMS, world_size=2, seq_len=32),
    sweep(strategy=("fsdp", "tp"), algorithm="native", world_size=4, seq_len=32),
]
PROTOCOL = Protocol(warmup=5, steps=20, launches=3)
