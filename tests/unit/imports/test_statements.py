"""The sentences that a folder of recordings must and must not lead to, with one row for each kind of input."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

import recordings
from command_line import parabench
from docs.site.schemas import schema
from page_helpers import Page
from parabench.analysis.session import session_data
from parabench.imports import kineto, read_folder
from parabench.imports.into_store import record
from parabench.report.views.recorded import sentences
from parabench.store.results import load
from recordings import RUNNING, alone, dump, entry, event, message, named_kernels, of_gpu, step

ACTIVE = {"state": "scheduled"} | {name: value for name, value in RUNNING.items() if name != "state"}
HEALTHY = "none waits for another"
NO_SHARE = "Exposed communication is"
UNKNOWN_SHARE = "exposed communication is unknown"


def of_group(group: str, number: int, **more: Any) -> dict[str, Any]:
    return entry(number) | {"process_group": [group, ""], "record_id": 900} | more


TEXT = json.dumps(of_gpu(0))
SNAPSHOT = pickle.dumps({"segments": [{"address": 1}], "device_traces": [[]]}, 4)
CPU_ONLY = {
    "traceEvents": [
        step(0, 1000, 100),
        event("aten::add", "cpu_op", 1000, 50),
        event("record_param_comms", "cpu_op", 1010, 9, **recordings.params(4, "all_to_all", **{"Group size": 8})),
        event("nccl:all_to_all", "user_annotation", 1010, 9),
    ]
}
NO_STEPS = of_gpu(0)
NO_STEPS["traceEvents"] = [each for each in NO_STEPS["traceEvents"] if "ProfilerStep" not in each["name"]]
NO_TYPES = json.loads(TEXT.replace("_Sum_f32", "").replace('"dtype": "Float", ', ""))
LATER = {"baseTimeNanoseconds": 1_700_000_060_000_000_000}


class Row(NamedTuple):
    name: str
    files: dict[str, Any]
    must: tuple[str, ...]
    must_not: tuple[str, ...] = ()


ROWS = [
    # Flight recorders.
    Row(
        "several_groups",
        {
            "rank_0": dump(entry(1), entry(2, **RUNNING), of_group("7", 1, **RUNNING), groups={"7": "[0, 1]"}),
            "rank_1": dump(entry(1), groups={"7": "[0, 1]"}),
        },
        ("Others wait for rank 1 in 2 groups", "Later calls were not entered, either: call 2 of group 0",
         "Call 1 of group 7", "Last calls in any group: rank 1 called all_reduce"),
    ),
    Row(
        "device_stuck",
        {
            "rank_0": dump(*(entry(n, **ACTIVE) for n in (5, 6, 7))),
            "rank_1": dump(entry(5), entry(6), entry(7, **ACTIVE), entry(8, **ACTIVE)),
        },
        ("By its dump rank 0 had not finished calls that another rank of the same group had: rank 0 in call 5",),
        (HEALTHY,),
    ),
    Row(
        "in_one_call",
        {f"rank_{n}": dump(*map(entry, range(1, 6)), entry(6, **RUNNING)) for n in (0, 1)},
        ("Call 6 of group 0 (default_pg), all_reduce of 4,000 bytes of float32, was entered by all 2 ranks and",
         "finished on none."),
        (HEALTHY, "not by rank"),
    ),
    Row(
        "where_it_was_called",
        {
            "rank_0": dump(entry(1), entry(2, frames=[{"filename": "/x/torch/c10d.py", "line": 1},
                                                     {"filename": "train.py", "line": 7}], **RUNNING)),
            "rank_1": dump(entry(1)),
        },
        ("float32, called at train.py:7, was entered by rank 0 and not by rank 1",),
    ),
    Row(
        "pipeline",
        {"rank_0": dump(entry(1), message(1, "nccl:send 0->1")), "rank_1": dump(entry(1))},
        ("rank 0's send to rank 1 (call 1 of group 0 (default_pg)), which has no unfinished recv for it",),
        (HEALTHY,),
    ),
    Row(
        "a_dump_is_missing",
        {"rank_0": dump(entry(1))},
        ("in group 0 (default_pg) is unknown: rank 1: it has no dump",),
        (HEALTHY,),
    ),
    Row(
        "mismatch",
        {"rank_0": dump(entry(6, **RUNNING)), "rank_1": dump(entry(6, "nccl:all_gather", **RUNNING))},
        ("Call 6 of group 0 (default_pg) is not the same on its ranks", "rank 1 called all_gather"),
        (HEALTHY, "all 2 ranks"),
    ),
    Row("healthy", {f"rank_{n}": dump(entry(1), entry(2)) for n in (0, 1)}, (HEALTHY,), ("unknown", "warning")),
    # Communication that was not recorded.
    Row("no_kernels", {"trace__json": CPU_ONLY}, (UNKNOWN_SHARE, "profile the device, too", "of 8"), (NO_SHARE,)),
    Row("one_process", {"step_5__json": alone()}, ("A step took", UNKNOWN_SHARE, "it has no collective"),
        (NO_SHARE, "is of rank", "The trace of")),
    # Files that are not recordings.
    Row(
        "other_files",
        {
            "rank0__json": of_gpu(0),
            "rank1__json": of_gpu(1),
            "cache__json": {"version": 1, "entries": [{"key": "pg"}]},
            "one___rank0_memory_snapshot__pickle": SNAPSHOT,
        },
        ("2 steps of 2 ranks", "Exposed communication is 20%"),
        ("warning", "snapshot"),
    ),
    # Kernels without arguments, as in CUDA graphs, and without the types of tensors.
    Row("no_types", {"rank0__json": NO_TYPES}, ("2 calls without a size: their types are unknown",)),
    Row(
        "no_arguments",
        {f"rank{n}__json": named_kernels("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", n) for n in (0, 1)},
        ("Exposed communication is 20%", "4 calls without a size: the trace has none"),
        ("record_shapes", "names the collective"),
    ),
    # Old and other writers.
    Row(
        "no_steps",
        {"rank0__json": NO_STEPS},
        ("The whole trace, which has no steps, took 0.190 ms", "so the whole trace is one step here"),
        ("A step took",),
    ),
    # Damaged or odd texts.
    Row(
        "invalid_utf8_and_nan",
        {
            "rank0__json": TEXT.replace('"traceName"', '"x": -inf, "y"').encode().replace(b"rank0.json", b"\xff\x01"),
            "rank1__json": of_gpu(1),
        },
        ("2 steps of 2 ranks", "Exposed communication is 20%"),
        ("warning",),
    ),
    Row(
        "truncated",
        {"rank0__json__gz": gzip.compress(TEXT.encode())[:-20], "rank1__json": of_gpu(1)},
        ("rank0.json.gz: Compressed file ended before", "2 steps of 1 rank", "The trace of rank 0 of 2 is missing"),
    ),
    # Several files of a rank.
    Row(
        "epochs",
        {f"{at}___rank{n}__json": of_gpu(n) | more for n in (0, 1) for at, more in (("a", {}), ("b", LATER))},
        ("2 steps of 2 ranks", "b/rank0.json: left out, because a/rank0.json is of the same rank and steps"),
    ),
    Row(
        "straggler_on_another_host",
        {"rank0__json": of_gpu(0), "rank1__json": of_gpu(1, host="node1") | LATER},
        ("Others wait for rank 1: it came last in 2 of 2 collectives", "by the shortest kernel", "Times were moved"),
    ),
    Row(
        "exported_trace",
        {
            "rank0__json": of_gpu(0), "rank1__json": of_gpu(1),
            "all__json": {"otherData": {"zero_s": 1.5}, "traceEvents": [step(0, 1, 2)]},
        },
        ("2 steps of 2 ranks", "all.json: `parabench export --trace` wrote it"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_statements_need_evidence(tmp_path: Path, row: Row) -> None:
    record(read_folder(recordings.write(tmp_path / "made", **row.files)), tmp_path / "made.db", ["parabench"])
    seen = session_data(load(tmp_path / "made.db"))
    found = seen.results.finding
    found = found[~found["code"].isin(("recording_profiled", "recording_hang", "recording_mismatch"))]
    text = "\n".join([*sentences(seen), *(f"warning: {each}" for each in found["message"])])
    assert [each for each in row.must if each not in text] == [], text
    assert [each for each in row.must_not if each in text] == [], text


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllReduce kernel"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_Sum_bf16(ncclSymkDevWorkArgs4K)", "AllReduce kernel"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgs)", "ncclDevKernel_Generic_4"),
        ("void deep_ep::internode::dispatch<false, 4>()", "deep_ep::internode::dispatch"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(RankData*)", "vllm::cross_device_reduce_1stage"),
        ("(anonymous namespace)::one_shot_all_reduce_kernel<4>()", "one_shot_all_reduce_kernel"),
    ],
)
def test_kernels_of_communication_libraries_are_recognized(tmp_path: Path, name: str, label: str) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(named_kernels(name)))
    found = kineto.read(tmp_path / "rank0.json")
    assert set(found.calls["op"]) == {label}
    assert {name for _, name, _, _ in found.parts} >= {"communication", "wait"}


def test_terminal_shows_conclusions_in_five_lines(tmp_path: Path) -> None:
    calls = [of_group(str(n), 1, **RUNNING) for n in range(1, 9)]
    groups = {str(n): "[0, 1]" for n in range(1, 9)}
    recordings.write(
        tmp_path / "made", rank_0=dump(entry(1), *calls, groups=groups), rank_1=dump(entry(1), groups=groups)
    )
    done = parabench("report", "--from", tmp_path / "made", "-o", tmp_path / "page.html")
    *lines, _, _ = done.output.splitlines()
    assert len(lines) <= 5
    assert lines[0].startswith("Others wait for rank 1 in 8 groups")
    assert lines[-1].endswith("and 3 more.")


def test_compare_from_shows_steps_and_kernels(tmp_path: Path) -> None:
    slower = of_gpu(0)
    for each in slower["traceEvents"]:
        each["ts"], each["dur"] = 2 * each["ts"], 2 * each["dur"]
    recordings.write(tmp_path / "a", rank0__json=of_gpu(0))
    recordings.write(tmp_path / "b", rank0__json=slower)
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "markdown", "html")]
    done = parabench("compare", "--from", tmp_path / "a", tmp_path / "b", *files)
    assert done.exit_code == 0, done.output
    assert "takes 2.00 times as long in the candidate: 0.100 ms (0.100 to 0.100) before" in done.output
    assert "the variance between launches is unknown" in done.output
    document = json.loads((tmp_path / "json").read_text())
    jsonschema.validate(document, schema("compare-recorded"), jsonschema.Draft202012Validator)
    rows = {(row["what"], row["name"]): row for row in document["tables"]["compared"]}
    for key in (
        ("step", "slowest rank"), ("step", "exposed communication"), ("kernel", "gemm<float>"),
        ("collective", "all_reduce, 4,000 bytes, float32, 2 ranks"),
    ):  # fmt: skip
        assert (rows[key]["ratio"], rows[key]["apart"]) == (pytest.approx(2), True), key
    assert "takes 2.00 times as long" in Page((tmp_path / "html").read_text()).text
    assert "| kernel: gemm" in (tmp_path / "markdown").read_text()
    wrong = parabench("compare", "--from", "--tolerance", "2%", tmp_path / "a", tmp_path / "b")
    assert "--tolerance has no effect with --from" in wrong.stderr


def test_export_merges_all_ranks_on_one_clock(tmp_path: Path) -> None:
    flow = {"ph": "s", "id": 5, "pid": 1, "tid": 1, "ts": 1010, "cat": "ac2g", "name": "ac2g"}
    traces = [of_gpu(0), of_gpu(1, host="node1") | LATER]
    for each in traces:
        each["traceEvents"].append(flow)
    recordings.write(tmp_path / "made", rank0__json=traces[0], rank1__json=traces[1], rank_0=dump(entry(1)))
    done = parabench("export", "--trace", "--from", tmp_path / "made", "-o", tmp_path / "all.json")
    assert done.exit_code == 0, done.output
    assert "2 ranks; open it in ui.perfetto.dev" in done.output
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    ends = {each["pid"]: each["ts"] + each["dur"] for each in events if each["name"].startswith("nccl")}
    first, second = ends.values()
    assert first == pytest.approx(second, abs=1e-3)
    assert len({each["id"] for each in events if each["ph"] == "s"}) == 2
    assert [each["name"] for each in events if each["ph"] == "i"] == ["all_reduce of 4,000 bytes of float32"]
    wrong = parabench("export", "--trace", "ddp", "--from", tmp_path / "made")
    assert "goes with --trace alone" in wrong.stderr
