"""Compute-only runs of one rank of many: real processes, with a process group that has only one rank."""

from pathlib import Path
from typing import Any

from command_line import parabench
from parabench.analysis.prediction.base import base_of, sessions_of
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch
from parabench.store.results import load
from real_launches import succeeded

SHORT = Protocol(warmup=2, steps=2, instrumented=2)
SUITE = '''"""What would more ranks give?"""
from parabench import Protocol, sweep
CASES = [sweep(strategy="ddp", model="toy", batch_per_rank=2, world_size=2)]
PROTOCOL = Protocol(launches=1, warmup=2, steps=2, instrumented=0)
COMPUTE = [
    sweep(strategy=("ddp", "fsdp"), model="toy", batch_per_rank=2, world_size=(2, 8)),
]
COMPUTE_PROTOCOL = Protocol(launches=1, warmup=2, steps=2, instrumented=2)
COLLECTIVES = {"op": "all_reduce", "algorithm": "native", "min_bytes": "64KiB", "max_bytes": "64KiB"}
'''


def alone(**fields: Any) -> Launch:
    """Return a compute-only launch of the ranks of one node of the case."""
    case = Case(**({"device": "cpu", "backend": "gloo", "data": "synthetic", "model": "toy", "seq_len": 1} | fields))
    return succeeded(case, SHORT, kind="compute")


def calls(seen: Launch) -> list[tuple[str, int, int]]:
    """Return (operation, bytes, ranks) of the calls in a step of rank 0."""
    return [(op, size, len(ranks)) for kind, op, size, ranks, _ in
            (event for event in seen.facts["program"][0]["events"] if event[0] == "call")]  # fmt: skip


def test_the_ranks_of_one_node_run_and_call_for_all() -> None:
    seen = alone(strategy="ddp", world_size=16, nodes=8, global_batch=32)
    assert [each["rank"] for each in seen.facts["program"]] == [0, 1]
    found = calls(seen)
    parameters = seen.facts["model"]["parameters"]
    assert {(op, ranks) for op, _, ranks in found} == {("all_reduce", 16)}
    assert sum(size for _, size, _ in found) == 4 * parameters
    # Each gradient is reported, in the order of readiness.
    gradients = seen.facts["gradients"]
    assert sum(size for _, size, _ in gradients) == 4 * parameters
    assert [ready for *_, ready in gradients] == sorted(ready for *_, ready in gradients)


def test_a_shard_holds_its_part_and_gathers_the_whole() -> None:
    seen = alone(strategy="fsdp", world_size=8, nodes=8, global_batch=16)
    found = calls(seen)
    assert {(op, ranks) for op, _, ranks in found} == {("all_gather", 8), ("reduce_scatter", 8)}
    scattered = sum(size for op, size, _ in found if op == "reduce_scatter")
    assert scattered >= 4 * seen.facts["model"]["parameters"]
    assert [event[0] for event in seen.facts["program"][0]["events"]].count("wait") >= len(found)


def test_groups_of_a_grid_are_distinguished() -> None:
    seen = alone(strategy="tp_fsdp", model="gpt-nano", seq_len=16, world_size=8, nodes=4, tp_size=2, global_batch=8)
    assert {ranks for _, _, ranks in calls(seen)} == {2, 4}


def test_a_suite_of_several_sessions_is_run_resumed_and_predicted_from(tmp_path: Path) -> None:
    """Compute-only runs, collectives and training runs share one database and one report; `predict` reads it."""
    suite = tmp_path / "more.py"
    suite.write_text(SUITE)
    done = parabench("run", str(suite), "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    results = load(tmp_path / "results.db")
    assert [len(sessions_of(results, kind)) for kind in ("compute", "collectives", "training")] == [1, 1, 1]
    base = base_of([results])
    assert {(each.case.strategy, each.case.world_size, each.per_node) for each in base.computed} == {
        ("ddp", 2, 2), ("ddp", 8, 2), ("fsdp", 2, 2), ("fsdp", 8, 2),
    }  # fmt: skip
    events = [each for one in base.computed for each in one.program.events]
    assert {call.ranks for kind, call in events if kind == "call"} == {range(2), range(8)}
    assert all(each.peak_bytes > 0 for each in base.computed)
    # The last session is there, so nothing is left.
    again = parabench("run", str(suite), "--out", str(tmp_path), "--resume")
    assert again.exit_code == 0, again.output
    assert len(load(tmp_path / "results.db").session) == 3
    told = parabench(
        "predict", str(tmp_path), "--world-size", "2,8", "--set", "strategy=ddp", "--link", "node=1GB/s,20us"
    )
    assert told.exit_code == 0, told.output
    assert "ddp native, 8 ranks on 4 nodes" in told.output


def test_a_suite_of_several_sessions_runs_on_one_machine(tmp_path: Path) -> None:
    suite = tmp_path / "more.py"
    suite.write_text(SUITE)
    told = parabench("run", "--nnodes", "2", "--nproc-per-node", "1", str(suite), "--out", str(tmp_path / "out"))
    assert told.exit_code == 2
    assert "takes several sessions, which run on one machine; start it without --nnodes" in told.output
    assert not (tmp_path / "out").exists()
