"""What would more ranks, other links or other buckets give? This measures what predictions need, in minutes.

It records compute-only runs of 2 and 16 ranks, then collectives, then training runs of 2 ranks, which correct the
predictions. `parabench predict` answers the question.
"""

from parabench import Protocol, sweep

STRATEGIES = ("ddp", "zero1", "fsdp")

CASES = [
    sweep(strategy="single", batch_per_rank=4),
    sweep(strategy="ddp", algorithm=("native", "ring"), bucket_mib=(None, 0.5), world_size=2, batch_per_rank=4),
    sweep(strategy=("zero1", "fsdp"), world_size=2, batch_per_rank=4),
    sweep(strategy="tp", world_size=2, global_batch=8),
]
PROTOCOL = {"cpu": Protocol(budget_s=120)}

COMPUTE = [
    sweep(strategy=STRATEGIES, world_size=(2, 16), batch_per_rank=4),
    sweep(strategy="tp", world_size=(2, 4), global_batch=8),
]
COMPUTE_PROTOCOL = Protocol(launches=2, warmup=3, steps=12, instrumented=4)

COLLECTIVES = {"world_size": "2", "min_bytes": "16KiB", "max_bytes": "32MiB", "launches": 2}
