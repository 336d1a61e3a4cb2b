"""Generated traces of torch.profiler with kernels of a GPU and known numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from parabench.imports import kineto
from parabench.store.record import COMMUNICATION, OTHER, WAIT
from recordings import event, of_gpu, params, step


def read(folder: Path, trace: Any) -> Any:
    path = folder / "rank0.json"
    path.write_text(json.dumps(trace))
    return kineto.read(path)


def lengths(found: Any, number: int) -> dict[str, float]:
    """Return the microseconds of each part of a step."""
    sums: dict[str, float] = {}
    for at, name, begin, end in found.parts:
        if at == number:
            sums[name] = round(sums.get(name, 0.0) + (end - begin) * 1e6, 3)
    return sums


def rows(found: Any) -> list[Any]:
    return list(found.calls.itertuples())


def microseconds(*seconds: float) -> list[float]:
    return [round(each * 1e6, 3) for each in seconds]


def test_step_has_parts_by_its_annotations_and_kernels(tmp_path):
    found = read(tmp_path, of_gpu())
    assert found.zero_ns == 1_700_000_000_001_000_000
    assert {n: microseconds(*pair) for n, pair in found.steps.items()} == {0: [0, 100], 1: [100, 200]}
    assert lengths(found, 1) == {"forward": 20, "optimizer": 10, OTHER: 70, COMMUNICATION: 40, WAIT: 20}
    assert (found.rank, found.world_size, found.host, found.device, found.backend) == (0, 2, "node0", "cuda", "nccl")
    assert found.gpus == [{"name": "NVIDIA H100", "memory_bytes": 80 << 30}]


def test_call_has_times_of_kernel_and_host(tmp_path):
    first, second = rows(read(tmp_path, of_gpu(1)))
    assert (first.step, first.op, first.ranks, first.group_size, first.bytes, first.dtype) == (
        0, "all_reduce", (0, 1), 2, 4000, "float32",
    )  # fmt: skip
    assert microseconds(first.made_s, first.start_s, first.duration_s) == [20, 40, 30]
    assert (second.step, second.seq) == (1, 1)


def test_backward_ends_with_its_last_gradient(tmp_path):
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        step(0, 0, 100),
        event("DistributedDataParallel.forward", "user_annotation", 5, 10),
        event(engine, "cpu_op", 20, 5),
        event(engine, "cpu_op", 30, 5),  # between them nothing else begins
        event("Optimizer.step#SGD.step", "user_annotation", 40, 10),
        event(engine, "cpu_op", 60, 5),
    ]
    assert lengths(read(tmp_path, {"traceEvents": events}), 0) == {
        "forward": 10, "optimizer": 10, "backward": 20, OTHER: 60,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size_in", "size_out", "op", "size"),
    [
        ("_allgather_base", 10, 40, "all_gather", 160),
        ("_reduce_scatter_base", 40, 10, "reduce_scatter", 160),
        ("allreduce_coalesced", 10, 10, "all_reduce", 40),
        ("all_to_allv", 12, 8, "all_to_all", 48),
    ],
)
def test_call_has_the_bytes_of_the_whole_buffer(tmp_path, name, size_in, size_out, op, size):
    args = params(1, name, **{"In msg nelems": size_in, "Out msg nelems": size_out})
    (call,) = rows(read(tmp_path, {"traceEvents": [step(0, 0, 9), event("ncclDevKernel", "kernel", 1, 2, **args)]}))
    assert (call.op, call.bytes) == (op, size)


def test_call_has_no_start_without_kernels(tmp_path):
    found = read(tmp_path, {"traceEvents": [step(0, 0, 9), event("record_param_comms", "cpu_op", 1, 2, **params(4))]})
    (call,) = rows(found)
    assert microseconds(call.made_s) == [1]
    assert found.calls[["start_s", "duration_s"]].isna().all(axis=None)
    assert COMMUNICATION not in lengths(found, 0)
    assert "when collectives ran is unknown" in found.unknown[0]
