"""`watch` in two ranks: a successful loop, a failing tuning, a killed rank, and the examples."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from parabench.errors import UsageError
from parabench.watching.group import Group
from paths import FIXTURES, ROOT
from process_helpers import query
from script_helpers import run_in_ranks

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
LOOP = FIXTURES / "loop_of_ones_own.py"
STEPS, TUNED = 90, 2 * 3 * 7


def ranks_of(text: str) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["rank"]: line for line in lines}


def run(folder: Path, *asked: str) -> tuple[int, dict[int, dict[str, Any]], str]:
    """Run the loop under torchrun. Return the exit code, the output of each rank that finished, and stderr."""
    done = subprocess.run(
        [*TORCHRUN, str(LOOP), *asked],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    return done.returncode, ranks_of(done.stdout), done.stderr


def rows(folder: Path, sql: str) -> list[Any]:
    return query(folder / "seen" / "results.db", sql)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, Any]], str]:
    folder = tmp_path_factory.mktemp("tuned")
    code, ranks, text = run(folder, str(STEPS), "--plain", "--watch", "--tune")
    assert code == 0, text
    return folder, ranks, text


def test_watch_leaves_losses_identical(tuned: tuple[Path, dict[int, dict[str, Any]], str]) -> None:
    _, ranks, _ = tuned
    assert len(ranks) == 2
    for each in ranks.values():
        assert each["losses"] == each["plain"]  # bit by bit: two ranks have one order of addition
        assert len(each["losses"]) == STEPS


def test_watch_records_a_whole_session(tuned: tuple[Path, dict[int, dict[str, Any]], str]) -> None:
    folder, _, text = tuned
    assert re.search(r"Parts of the loop's time, on rank [01] \(mean of 43 steps after the first 47\): data ", text)
    ((suite, kind),) = rows(folder, "SELECT suite, json_extract(plan, '$.kind') FROM session")
    assert (suite, kind) == ("loop_of_ones_own.py", "training")
    found = rows(folder, "SELECT status, world_size, strategy, model FROM launch WHERE repetition = 0")
    assert found == [("ok", 2, "ddp", "loop_of_ones_own:Words")]
    steps = rows(
        folder,
        "SELECT rank, phase, count(*) FROM sample JOIN launch ON launch_id = launch.id "
        "WHERE metric = 'step_s' AND repetition = 0 GROUP BY rank, phase ORDER BY 1, 2",
    )
    counts = (("instrument", 8), ("measure", STEPS - 5 - TUNED - 8), ("settle", TUNED), ("warmup", 5))
    assert steps == [(rank, phase, n) for rank in (0, 1) for phase, n in counts]
    parts = {name for (name,) in rows(folder, "SELECT DISTINCT name FROM span")}
    assert {"data", "forward", "backward", "optimizer", "other"} <= parts
    calls = rows(folder, "SELECT rank, step, sum(bytes) FROM collective WHERE op = 'all_reduce' GROUP BY 1, 2")
    parameters = 64 * 32 + 33 * 256 + 257 * 64
    first = 25 + TUNED
    assert calls == [(rank, step, 4 * parameters) for rank in (0, 1) for step in range(first, first + 8)]
    assert {code for (code,) in rows(folder, "SELECT code FROM finding")} >= {"watched", "unverified"}


def test_watch_goes_on_with_the_fastest_cap(tuned: tuple[Path, dict[int, dict[str, Any]], str]) -> None:
    folder, _, text = tuned
    assert "Tuning of 2 bucket caps over 3 rounds of this run" in text
    # The verdict compares the caps in their turns; the loop has a separate step time.
    assert re.search(r"^(watch: )?The loop: [\d.,]+ ms per step\.$", text, re.MULTILINE)
    caps = rows(
        folder,
        "SELECT bucket_mib, count(*) FROM launch JOIN sample ON launch_id = launch.id "
        "WHERE repetition = 1 AND metric = 'step_s' AND phase = 'measure' GROUP BY launch.id ORDER BY position",
    )
    assert caps == [(0.01, 2 * 3 * 5), (25, 2 * 3 * 5)]
    ((best,),) = rows(folder, "SELECT bucket_mib FROM launch WHERE repetition = 0")
    assert f"goes on with {best:g} MiB" in text


def test_tuning_ends_on_all_ranks_when_one_cannot_go_on(tmp_path: Path) -> None:
    text, _ = run_in_ranks(LOOP, tmp_path, "40", "--plain", "--watch", "--tune", "--refuse", "25")
    for each in ranks_of(text).values():
        assert each["losses"] == each["plain"]
    ((status, cap),) = rows(tmp_path, "SELECT status, bucket_mib FROM launch")
    assert (status, cap) in [("ok", 0.01), ("ok", 1)]  # the turn before, or the cap of the loop's own
    ((reasons,),) = rows(tmp_path, "SELECT group_concat(message) FROM finding WHERE code = 'instrument_off'")
    assert "MemoryError: no room for buckets" in reasons
    assert "RuntimeError: another rank could not change its bucket cap" in reasons


def test_watch_records_a_rank_that_is_killed(tmp_path: Path) -> None:
    _, text = run_in_ranks(LOOP, tmp_path, "30", "--watch", "--kill-at", "12", fails=True)
    ((status, error),) = rows(tmp_path, "SELECT status, error FROM launch")
    assert (status, "rank 1" in error) == ("crashed", True), (error, text)
    assert rows(tmp_path, "SELECT count(*) FROM sample WHERE metric = 'step_s' AND rank = 0") == [(12,)]


def test_group_names_ranks_that_enter_no_watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch.distributed as dist

    from parabench.watching import group

    monkeypatch.setattr(group, "ENTER_S", 0.1)
    store = dist.FileStore(str(tmp_path / "store"), 3)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(group.c10d, "_get_default_store", lambda: store)
    with pytest.raises(UsageError, match=r"ranks 1, 2 of 3 did not enter the `with` block within 0\.1 s"):
        Group.enter()


@pytest.mark.parametrize(
    ("example", "strategy", "steps", "parts"),
    [
        ("watch/nanogpt.py", "ddp", 40, {"data_s", "forward_backward_s", "optimizer_s", "other_s"}),
        ("watch/sharded.py", "fsdp", 40, {"data_s", "forward_s", "backward_s", "optimizer_s", "other_s"}),
        ("models/validation_loop.py", "ddp", 80, {"data_s", "forward_s", "backward_s", "optimizer_s", "other_s"}),
    ],
)
def test_an_example_is_watched(tmp_path: Path, example: str, strategy: str, steps: int, parts: set[str]) -> None:
    run_in_ranks(ROOT / "examples" / example, tmp_path, SAMPLES="640", STEPS="40")
    store = tmp_path / "parabench-results" / "results.db"
    assert query(store, "SELECT status, strategy, world_size FROM launch") == [("ok", strategy, 2)]
    counts = dict(query(store, "SELECT metric, count(*) FROM sample WHERE step IS NOT NULL GROUP BY metric"))
    ((calls,),) = query(store, "SELECT count(*) FROM collective")
    assert counts["step_s"] == 2 * steps
    assert {name for name in counts if name.endswith("_s")} - {"step_s", "device_lag_s"} == parts
    assert calls > 0
