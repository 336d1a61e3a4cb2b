"""What only a GPU can show: NCCL's timing against torch.profiler's kernels, the allocator, the explaining launch."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from guard import GUARD_S
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.session.runner import EXPLAINING
from parabench.store.record import Launch, Status

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")

PROTOCOL = Protocol(warmup=3, steps=5, instrumented=4, profile=True, memory_snapshot=True)


def seen(folder: Path, protocol: Protocol = PROTOCOL, **fields: Any) -> Launch:
    case = Case(**({"device": "cuda", "backend": "nccl", "model": "gpt2", "bucket_mib": 25.0} | fields))
    launched = launch(LaunchSpec.of(case, protocol, deadline_s=GUARD_S, traces=folder / "traces"))
    assert launched.status is Status.OK, launched.failure
    return launched


def events(folder: Path, launched: Launch, rank: int) -> list[dict[str, Any]]:
    path = folder / "traces" / launched.facts["profile"][rank]["file"]
    told: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return told


@two
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_nccls_kernels_last_as_long_as_the_profiler_says(strategy: str, tmp_path: Path) -> None:
    launched = seen(tmp_path, strategy=strategy, world_size=2)
    ours = defaultdict(list)
    for call in launched.collectives:
        if call.rank == 0:
            assert call.duration_s is not None
            ours[call.op].append(call.duration_s)
    kernels = [e for e in events(tmp_path, launched, 0) if e.get("cat") == "kernel" and "nccl" in e["name"].lower()]
    theirs = {
        op: [e["dur"] / 1e6 for e in kernels if name in e["name"]]
        for op, name in (("all_reduce", "AllReduce"), ("all_gather", "AllGather"), ("reduce_scatter", "ReduceScatter"))
    }
    for op, durations in ours.items():
        assert len(durations) == PROTOCOL.instrumented * len(theirs[op])
        # Another step, and the profiler makes ranks come at other times: half as long again is no contradiction.
        assert statistics.median(durations) == pytest.approx(statistics.median(theirs[op]), rel=0.5, abs=1e-4)


@two
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pp"])
def test_training_stands_still_for_some_of_nccls_communication(strategy: str, tmp_path: Path) -> None:
    launched = seen(tmp_path, Protocol(warmup=3, steps=5), strategy=strategy, world_size=2)
    assert [span for span in launched.spans if span.name == "wait" and span.end_s - span.start_s > 1e-5]


@two
def test_ddps_logger_and_ours_agree(tmp_path: Path) -> None:
    launched = seen(tmp_path, Protocol(warmup=3, steps=5), world_size=2)
    for told in launched.facts["ddp_logger"]:
        rows = [c for c in launched.collectives if (c.rank, c.step) == (told["rank"], told["step"])]
        ends = [c.start_s + c.duration_s for c in rows if c.start_s is not None and c.duration_s is not None]
        span = max(ends) - min(c.made_s for c in rows if c.made_s is not None)
        assert told["communication_s"] == pytest.approx(span, rel=0.2, abs=1e-3)


@two
def test_nccl_tells_what_it_chose_for_every_bucket(tmp_path: Path) -> None:
    launched = seen(tmp_path, EXPLAINING, world_size=2)
    told = launched.facts["nccl"][0]
    assert told["version"]
    assert told["channels"]["coll"] > 0
    chosen = {choice["bytes"] for choice in told["choices"] if choice["op"] == "all_reduce"}
    assert set(launched.facts["bucket_bytes"]) <= chosen
