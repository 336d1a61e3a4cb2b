"""Traces of torch.profiler with a GPU's kernels, made so that every number in them is known. Not yet run on a GPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import recordings
from parabench.errors import UsageError
from parabench.imports import kineto, read_folder
from parabench.imports.into_store import launch_of
from parabench.store.record import COMMUNICATION, OTHER, WAIT
from recordings import event, of_gpu, params, step


def read(folder: Path, trace: Any, name: str = "rank0.json") -> Any:
    path = folder / name
    path.write_text(trace if isinstance(trace, str) else json.dumps(trace))
    return kineto.read(path)[0]


def lengths(found: Any, number: int) -> dict[str, float]:
    """Microseconds of each part of a step."""
    told: dict[str, float] = {}
    for part in found.parts:
        if part.step == number:
            told[part.name] = told.get(part.name, 0.0) + (part.end_ns - part.begin_ns) / 1e3
    return told


def test_a_step_is_taken_apart_by_its_annotations_and_kernels(tmp_path):
    found = read(tmp_path, of_gpu())
    begin = 1_700_000_000_001_000_000
    assert found.steps == {n: (begin + n * 100_000, begin + (n + 1) * 100_000) for n in (0, 1)}
    assert lengths(found, 1) == {"forward": 20, "optimizer": 10, OTHER: 70, COMMUNICATION: 40, WAIT: 20}
    assert (found.rank, found.world_size, found.host, found.device, found.backend) == (0, 2, "node0", "cuda", "nccl")
    assert found.gpus == [{"name": "NVIDIA H100", "memory_bytes": 80 << 30}]


def test_a_call_has_its_kernels_moments_and_those_of_its_call_on_the_host(tmp_path):
    first, second = read(tmp_path, of_gpu(1)).calls
    begin = 1_700_000_000_001_000_000
    assert (first.step, first.op, first.ranks, first.group_size, first.bytes, first.dtype) == (
        0, "all_reduce", (0, 1), 2, 4000, "float32",
    )  # fmt: skip
    assert (first.made_ns - begin, first.start_ns - begin, first.duration_ns) == (20_000, 40_000, 30_000)
    assert (second.step, second.seq) == (1, 1)


def test_backward_without_an_annotation_reaches_to_its_last_gradient(tmp_path):
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
        ("broadcast", 10, 10, "broadcast", 40),
    ],
)
def test_the_bytes_of_a_call_are_those_of_the_whole_buffer(tmp_path, name, size_in, size_out, op, size):
    told = params(1, name, **{"In msg nelems": size_in, "Out msg nelems": size_out})
    (call,) = read(tmp_path, {"traceEvents": [step(0, 0, 9), event("ncclDevKernel", "kernel", 1, 2, **told)]}).calls
    assert (call.op, call.bytes) == (op, size)


def test_without_kernels_when_calls_ran_is_unknown(tmp_path):
    found = read(tmp_path, {"traceEvents": [step(0, 0, 9), event("record_param_comms", "cpu_op", 1, 2, **params(4))]})
    (call,) = found.calls
    assert (call.made_ns, call.start_ns, call.duration_ns) == (1000, None, None)
    assert COMMUNICATION not in lengths(found, 0)
    assert "when collectives ran is unknown" in found.unknown[0]


def test_call_without_size_or_group_has_none(tmp_path):
    odd = [params(1, dtype="Quaternion"), params(2) | {"Group size": 0, "Process Group Ranks": ""}, {}]
    calls = [event("ncclKernel_x", "kernel", 1 + n, 1, **told) for n, told in enumerate(odd)]
    outside = event("ncclDevKernel", "kernel", 50, 2, **params(9))
    found = read(tmp_path, {"traceEvents": [step(0, 0, 9), *calls, outside]})
    assert [(one.group_size, one.bytes) for one in found.calls] == [(2, None), (None, 4000), (None, None)]
    assert (sum(found.left_out.values()), sum(found.unsized.values())) == (1, 2)
    # A list of ranks that was cut is none.
    (cut,) = read(
        tmp_path, {"traceEvents": [step(0, 0, 9), event("nccl:x", "kernel", 1, 1, **params(1, ranks="[0, 1, ...]"))]}
    ).calls
    assert (cut.ranks, cut.group_size) == (None, 2)


def annotated(op: str, dims: list[list[int]], kernels: int = 1, **info: Any) -> dict[str, Any]:
    """A trace of torch before 2.2: `record_param_comms` around the annotation, and kernels with its id alone."""
    note = event(f"nccl:{op}", "user_annotation", 12, 4, **{"Input Dims": dims, "Input type": ["float"] * len(dims)})
    name = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
    launched = [event(name, "kernel", 20 + 10 * n, 5, 7, **{"External id": 7}) for n in range(kernels)]
    call = event("record_param_comms", "cpu_op", 11, 6, **{"External id": 7})
    return {"distributedInfo": info, "traceEvents": [step(0, 0, 99), call, note, *launched]}


@pytest.mark.parametrize(
    ("op", "dims", "size"),
    [("all_to_all", [[394241]], 4 * 394241), ("all_reduce", [[10], [5, 2]], 80), ("all_gather", [[10]], None)],
)
def test_size_is_that_of_the_annotation(tmp_path, op, dims, size):
    (call,) = read(tmp_path, annotated(op, dims)).calls
    assert (call.op, call.bytes, call.ranks, call.group_size) == (op, size, None, None)
    groups = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    (call,) = read(tmp_path, annotated(op, dims, **groups)).calls
    assert (call.bytes, call.ranks) == (80 if op == "all_gather" else size, (0, 1))


def test_trace_is_one_window_when_it_has_no_steps(tmp_path):
    trace = of_gpu()
    trace["traceEvents"] = [each for each in trace["traceEvents"] if "ProfilerStep" not in each["name"]]
    found = read(tmp_path, trace)
    assert found.whole
    begin = 1_700_000_000_001_000_000
    assert found.steps == {0: (begin, begin + 190_000)}
    assert lengths(found, 0)[COMMUNICATION] == 80
    assert len(found.calls) == 2


def test_steps_are_renumbered_when_numbers_repeat(tmp_path):
    found = read(tmp_path, {"traceEvents": [step(3, 50, 9), step(3, 0, 9), step(4, 70, 9)]})
    assert [begin for begin, _ in found.steps.values()] == [0, 50_000, 70_000]
    assert list(found.steps) == [0, 1, 2]


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        ({"traceEvents": {}}, "in the place of"),
        ({"traceEvents": [step(0, -5, 9)]}, "which is no moment"),
        ({"traceEvents": [], "distributedInfo": {"rank": 4, "world_size": 2}}, "rank 4 of 2"),
        ('{"traceEvents": [{"ph": "X"', "cut off"),
        ('{"traceEvents": [' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_trace_is_refused_in_a_line(tmp_path, trace, why):
    with pytest.raises(UsageError, match=why) as refused:
        read(tmp_path, trace)
    assert "\n" not in str(refused.value)
    assert "rank0.json cannot be read" in str(refused.value)


def test_a_compressed_trace_is_read_and_a_cut_one_refused(tmp_path):
    raw = gzip.compress(json.dumps(of_gpu()).encode())
    (tmp_path / "rank0.json.gz").write_bytes(raw)
    assert len(kineto.read(tmp_path / "rank0.json.gz")[0].calls) == 2
    (tmp_path / "rank0.json.gz").write_bytes(raw[:-20])
    with pytest.raises(UsageError, match="cannot be read"):
        kineto.read(tmp_path / "rank0.json.gz")


def test_clocks_of_hosts_are_corrected(tmp_path):
    """Rank 0 is done with the all-reduce 1 ms before rank 1, on another host, begins it."""
    one, other = of_gpu(0), of_gpu(1, base_us=1060, host="node1")
    recordings.write(tmp_path, a__json=one, b__json=other)
    launch = launch_of(read_folder(tmp_path))
    (found,) = (each for each in launch.findings if each.code == "recording_clocks")
    assert "of 2 hosts" in found.message
    assert "at least 1.03 ms" in found.message
    assert "moved by up to 1.06 ms" in found.message
    ends = {(one.rank, one.step): one.start_s + one.duration_s for one in launch.collectives}
    for number in (0, 1):
        assert ends[0, number] == pytest.approx(ends[1, number], abs=1e-9)
    assert launch.case.nodes == 2
