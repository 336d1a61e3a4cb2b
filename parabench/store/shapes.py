"""What the JSON of a store holds, as far as answers are made of it: shapes, as `json_text` reads them."""

from __future__ import annotations

from typing import Any

from parabench.store.json_text import ANYTHING, COUNT, FLAG, NUMBER, TEXT, WHOLE, Having, Kind, OrNull, Shape
from parabench.store.record import CALL, PART, WAIT_FOR, WORK

_REASONS = {"*": TEXT}
_OBJECT: Shape = {"*": ANYTHING}

ARGV: Shape = [TEXT]
INTERLEAVED: Shape = {"run!!": TEXT, "side!!": TEXT, "setting": TEXT}

# What of a case its own checks do not look at: it may have more ranks than anybody has measured.
CASE: Shape = {"world_size": COUNT, "nodes": COUNT, "global_batch": WHOLE, "seq_len": WHOLE}
_PROTOCOL: Shape = {
    "launches": COUNT, "rounds": COUNT, "warmup": COUNT, "steps": COUNT, "deadline_s": NUMBER, "iterations": WHOLE,
    "mode": TEXT, "graph": FLAG,
}  # fmt: skip
PLAN: Shape = {
    "kind": TEXT,
    "cases": [CASE],
    "skipped": [{"case!!": CASE, "reason!!": TEXT, "tried": FLAG}],
    "protocol": _PROTOCOL,
    "seed": WHOLE,
    "blocks": COUNT,
    "extra": [[TEXT]],
    "settle": COUNT,
    "isolated": FLAG,
}

_GPU: Shape = {
    "name": TEXT, "memory_bytes": NUMBER, "cpus": TEXT, "numa_node": COUNT, "mig": FLAG,
}  # fmt: skip
# A device's limits and states, where `reasons` says what of them is unknown; readers have None for what is not there.
GPU_READ: Shape = _GPU | {
    "compute_capability": TEXT, "ecc": FLAG, "reasons!!": _REASONS,
    **dict.fromkeys(("power_limit_w", "power_default_w", "power_max_w"), NUMBER),
    **dict.fromkeys(("sm_clock_hz", "sm_clock_max_hz", "memory_clock_hz", "memory_clock_max_hz"), NUMBER),
    **{f"pcie_{name}": COUNT for name in ("generation", "width", "generation_max", "width_max")},
}  # fmt: skip
_CARD: Shape = {"name!": TEXT, "bits_per_s!": NUMBER}
_NODE: Shape = {
    "host": TEXT, "os": TEXT, "cpu": TEXT, "cores": COUNT, "memory_bytes": NUMBER, "python": TEXT, "node": COUNT,
    "processor": {"sockets": COUNT, "physical_cores": COUNT, "logical_cores": COUNT, "reasons": _REASONS},
    "numa": {"nodes": [{"node!": COUNT, "cpus!": TEXT, "memory_bytes!": NUMBER}], "reasons": _REASONS},
    "gpus": [Having("reasons", GPU_READ, _GPU)],
    "links": {"matrix": [[OrNull(TEXT)]], "reasons": _REASONS},
    "driver": {"version": TEXT, "cuda": TEXT, "reasons": _REASONS},
    "nvml": {"available": FLAG, "reason": TEXT},
    "network": {"interfaces": [_CARD], "infiniband": [_CARD | {"port!": COUNT, "state!": TEXT, "layer": TEXT}]},
    "container": Having(
        "reasons",
        {"kind!": TEXT, "cores!": NUMBER, "memory_bytes!": NUMBER, "reasons!!": _REASONS},
        {"kind": TEXT},
    ),
    "versions": {"*": TEXT},
    "unknown_versions": _REASONS,
    "git": {"commit": TEXT, "dirty": FLAG, "reasons": _REASONS},
    "env": {"*": TEXT},
}  # fmt: skip
ENVIRONMENT: Shape = _NODE | {
    "nodes": [_NODE],
    "cluster": {"nodes!": COUNT, "ranks_per_node!": COUNT},
    "nccl_wheel": TEXT,
}

_SAMPLER: Shape = {"cpu_s": NUMBER, "unread": {"*": TEXT}}
_CHOICE: Shape = {
    "op": TEXT, "bytes": WHOLE, "algorithm": TEXT, "protocol": TEXT, "channels": WHOLE, "calls": WHOLE
}  # fmt: skip
_NCCL: Shape = {
    "version!": TEXT, "network!": TEXT, "plugin!": TEXT, "nvls!": FLAG, "channels!!": {"*": WHOLE},
    "rings!!": {"*": TEXT}, "trees!!": {"*": TEXT}, "transports!!": {"*": WHOLE}, "choices!!": [_CHOICE],
    "rank": COUNT,
}  # fmt: skip
_INSPECTED: Shape = {
    "op": TEXT, "bytes": WHOLE, "ranks": COUNT, "calls": WHOLE, "duration_s": NUMBER, "algbw_bytes_per_s": NUMBER,
    "busbw_bytes_per_s": NUMBER,
}  # fmt: skip
_RECORDED: Shape = {
    "files": [{"file!!": TEXT, "kind!!": TEXT, "rank": COUNT, "host": TEXT, "steps!!": COUNT, "calls!!": WHOLE}],
    "not_read": COUNT,
    "last_calls": [
        {"group!!": TEXT, "ranks!!": TEXT, "number!!": WHOLE, "op!!": TEXT, "state!!": TEXT, "finished!!": FLAG}
    ],
    "kernels": [{"rank!!": COUNT, "name!!": TEXT, "steps_s!!": [NUMBER]}],
    "late": [
        {
            "op!!": TEXT, "ranks!!": TEXT, "bytes": WHOLE, "rank!!": COUNT, "calls!!": COUNT, "late_s!!": NUMBER,
            "total_s!!": NUMBER, "last!!": COUNT,
        }
    ],
}  # fmt: skip
_TRACED: Shape = [{"file!!": TEXT, "rank": COUNT, "bytes": WHOLE}]


def _event(value: Any) -> bool:
    """Whether it is an event of a rank's program, as `probes.program` tells them."""
    if not isinstance(value, list) or not value:
        return False
    kind, *rest = value
    wants = _EVENTS.get(kind) if isinstance(kind, str) else None
    return (
        wants is not None
        and len(wants) == len(rest)
        and all(want.holds(each) for want, each in zip(wants, rest, strict=True))
    )


_ALL = Kind("ranks", lambda value: isinstance(value, list) and bool(value) and all(map(COUNT.holds, value)))
_EVENTS = {PART: (TEXT,), WORK: (NUMBER,), WAIT_FOR: (COUNT,), CALL: (TEXT, WHOLE, _ALL, NUMBER)}
_EVENT = Kind("an event", _event)
_GRADIENT = Kind(
    "a gradient",
    lambda value: isinstance(value, list) and len(value) == 3 and all(map(NUMBER.holds, value[1:])),
)
_WINDOW = Kind(
    "two moments", lambda value: isinstance(value, list) and len(value) == 2 and all(map(NUMBER.holds, value))
)

FACTS: Shape = {
    "turns": {
        "cases!!": [TEXT],
        "protocol!!": {"rounds!!": COUNT, "settle!!": COUNT},
        "place!!": COUNT,
        "pair": {"run!!": TEXT},
    },
    "isolated": FLAG,
    "nodes": [
        {
            "node!!": COUNT, "first_rank!!": COUNT, "ranks!!": COUNT, "sampler": _SAMPLER,
            "clock": {"offset_s": NUMBER, "error_s": NUMBER},
        }
    ],
    "sampler": _SAMPLER,
    "clock": {"began_s": NUMBER},
    "phases": {"*": _WINDOW},
    "model": dict.fromkeys(
        ("bytes", "tensor_parallel_bytes", "parameters", "embedding_parameters", "layers", "heads", "head_dim"), NUMBER
    ) | {"no_formula": TEXT},
    "verification": {"weights": [TEXT], "suspects": [TEXT]},
    "flops": {"counted": NUMBER, "reason": TEXT},
    "compiled": [{"rank!!": COUNT, "graphs!!": COUNT, "eager_frames!!": COUNT}],
    "arithmetic": {"overrides!!": {"*": ANYTHING}, "matmul!": TEXT, "cudnn_tf32!": FLAG},
    "unit_bytes": [NUMBER],
    "bucket_bytes": [NUMBER],
    "bucket_cap_bytes": NUMBER,
    "buckets": [{"bytes": NUMBER, "parameters": [TEXT]}],
    "ddp_logger": [
        {
            "rank!!": COUNT, "step!!": COUNT, "forward_end_s!": NUMBER, "forward_s!": NUMBER, "backward_s!": NUMBER,
            "communication_s!": NUMBER,
        }
    ],
    "nccl": [_NCCL],
    "nccl_inspector": [{"ops!!": [_INSPECTED]}],
    "nccl_version": TEXT,
    "recorded": _RECORDED,
    "profile": _TRACED,
    "memory_snapshot": _TRACED,
    "pipeline": {"stages!!": COUNT, "microbatches!!": COUNT, "schedule!!": TEXT, "bubble!!": NUMBER},
    "piece_bytes": WHOLE,
    "program": [{"events!!": [_EVENT]}],
    "gradients": [_GRADIENT],
}  # fmt: skip
# Their turns have no protocol of their own.
FACTS_OF_COLLECTIVES: Shape = FACTS | {"turns": {"cases!!": [TEXT], "rounds!!": COUNT, "place!!": COUNT}}
