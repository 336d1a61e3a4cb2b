"""`watch` in real loops: alone and under torchrun, whole and failing."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from parabench.errors import UsageError
from parabench.watching.group import Group
from paths import FIXTURES

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
SCRIPT = str(FIXTURES / "loop_of_ones_own.py")


def start(folder: Path, *asked: str, launcher: list[str] = TORCHRUN) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*launcher, SCRIPT, *asked],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *asked: str, launcher: list[str] = TORCHRUN) -> tuple[int, dict[int, dict[str, Any]], str]:
    """The exit code, what each rank that came to its end printed, and what was said on stderr."""
    with start(folder, *asked, launcher=launcher) as process:
        out, said = process.communicate(timeout=GUARD_S)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return process.returncode, {line["rank"]: line for line in lines}, said


def rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "seen" / "results.db")) as db:
        return db.execute(query).fetchall()


def test_a_watched_training_is_the_same_and_its_session_is_whole(tmp_path: Path) -> None:
    code, ranks, said = run(tmp_path, "40", "--plain", "--watch")
    assert code == 0
    assert len(ranks) == 2
    for each in ranks.values():
        assert each["losses"] == each["plain"]  # bit by bit
        assert len(each["losses"]) == 40
    assert re.search(r"Where the loop's time goes, on rank [01] \(mean of 35 steps after the first 5\): data ", said)
    ((suite, kind),) = rows(tmp_path, "SELECT suite, json_extract(plan, '$.kind') FROM session")
    assert (suite, kind) == ("loop_of_ones_own.py", "training")
    ((status, world, strategy, model),) = rows(tmp_path, "SELECT status, world_size, strategy, model FROM launch")
    assert (status, world, strategy, model) == ("ok", 2, "ddp", "loop_of_ones_own:Words")
    steps = rows(
        tmp_path, "SELECT rank, phase, count(*) FROM sample WHERE metric = 'step_s' GROUP BY rank, phase ORDER BY 1, 2"
    )
    assert steps == [(r, p, n) for r in (0, 1) for p, n in (("instrument", 8), ("measure", 27), ("warmup", 5))]
    parts = {name for (name,) in rows(tmp_path, "SELECT DISTINCT name FROM span")}
    assert {"data", "forward", "backward", "optimizer", "other"} <= parts
    calls = rows(
        tmp_path, "SELECT rank, step, count(*), sum(bytes) FROM collective WHERE op = 'all_reduce' GROUP BY 1, 2"
    )
    assert [(rank, step) for rank, step, _, _ in calls] == [(r, s) for r in (0, 1) for s in range(25, 33)]
    parameters = 64 * 32 + 33 * 256 + 257 * 64
    assert {size for _, _, _, size in calls} == {4 * parameters}
    assert {code for (code,) in rows(tmp_path, "SELECT code FROM finding")} >= {"watched", "unverified"}


def test_one_process_needs_no_group(tmp_path: Path) -> None:
    code, ranks, said = run(tmp_path, "20", "--watch", "--epochs", "2", launcher=[sys.executable])
    assert code == 0, said
    assert len(ranks[0]["losses"]) == 40
    assert rows(tmp_path, "SELECT strategy, world_size FROM launch") == [("single", 1)]
    ((n, steps),) = rows(tmp_path, "SELECT count(*), max(step) FROM sample WHERE metric = 'step_s'")
    assert (n, steps) == (40, 39)


def test_a_race_leaves_the_training_at_the_best(tmp_path: Path) -> None:
    code, ranks, said = run(tmp_path, "90", "--plain", "--watch", "--race")
    assert code == 0, said
    for each in ranks.values():
        assert each["losses"] == each["plain"]  # of two ranks there is one way to add
    assert "Race of 2 bucket caps over 3 rounds of this run" in said
    assert "Where the loop's time goes, on rank" in said
    arms = rows(tmp_path, "SELECT bucket_mib, block, id FROM launch WHERE block = 1 ORDER BY position")
    assert [cap for cap, _, _ in arms] == [0.01, 25]
    timed = dict(
        rows(
            tmp_path, "SELECT launch_id, count(*) FROM sample WHERE metric = 'step_s' AND phase = 'measure' GROUP BY 1"
        )
    )
    assert [timed[launch] for _, _, launch in arms] == [2 * 3 * 5] * 2
    ((best,),) = rows(tmp_path, "SELECT bucket_mib FROM launch WHERE block = 0")
    assert f"goes on with {best:g} MiB" in said


def test_watch_ends_a_race_on_all_ranks_when_one_cannot_go_on(tmp_path: Path) -> None:
    code, ranks, said = run(tmp_path, "40", "--plain", "--watch", "--race", "--refuse", "25")
    assert code == 0, said
    for each in ranks.values():
        assert each["losses"] == each["plain"]
    ((status, cap),) = rows(tmp_path, "SELECT status, bucket_mib FROM launch")
    assert (status, cap) in [("ok", 0.01), ("ok", 1)]  # the turn before, or the cap of the loop's own
    ((reasons,),) = rows(tmp_path, "SELECT group_concat(message) FROM finding WHERE code = 'instrument_off'")
    assert "MemoryError: no room for buckets" in reasons
    assert "RuntimeError: another rank could not change its bucket cap" in reasons


def test_a_loop_that_ends_amid_a_race_is_recorded_without_it(tmp_path: Path) -> None:
    code, _, _ = run(tmp_path, "20", "--watch", "--race")
    assert code == 0
    assert rows(tmp_path, "SELECT block, status FROM launch") == [(0, "ok")]


@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        ("raise", "failed", "rank 1: ValueError: the loop is wrong"),
        ("kill", "crashed", "rank 1"),
    ],
)
def test_a_rank_that_fails_is_recorded(tmp_path: Path, how: str, status: str, told: str) -> None:
    code, _, said = run(tmp_path, "30", "--watch", "--fail-at", "12", how)
    assert code != 0
    ((ended, error),) = rows(tmp_path, "SELECT status, error FROM launch")
    assert (ended, told in error) == (status, True), (error, said)
    ((steps,),) = rows(tmp_path, "SELECT count(*) FROM sample WHERE metric = 'step_s' AND rank = 0")
    assert steps == 12


@pytest.mark.slow  # the test of SIGTERM, below, shows that steps are kept
def test_a_loop_that_is_stopped_has_seen_what_it_saw(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, "30", "--watch", "--fail-at", "12", "interrupt", launcher=[sys.executable])
    assert code != 0
    assert rows(tmp_path, "SELECT status FROM launch") == [("ok",)], said
    assert rows(tmp_path, "SELECT count(*) FROM sample WHERE metric = 'step_s'") == [(12,)]


def test_sigterm_ends_the_loop_and_what_was_seen_is_kept(tmp_path: Path) -> None:
    with start(tmp_path, "1000000", "--watch", launcher=[sys.executable]) as process:
        until = time.monotonic() + GUARD_S
        while not (tmp_path / "seen").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=GUARD_S)
    assert process.returncode == 143
    assert rows(tmp_path, "SELECT status FROM launch") == [("ok",)]


def test_ranks_that_enter_no_watch_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch.distributed as dist

    from parabench.watching import group

    monkeypatch.setattr(group, "ENTER_S", 0.1)
    store = dist.FileStore(str(tmp_path / "store"), 3)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(group.c10d, "_get_default_store", lambda: store)
    with pytest.raises(UsageError, match=r"of 3 ranks 1, 2 did not enter it within 0\.1 s"):
        Group.enter()
