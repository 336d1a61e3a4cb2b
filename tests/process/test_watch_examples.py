"""The examples of watched loops that need torch alone, run as they are."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from guard import GUARD_S
from paths import ROOT


@pytest.mark.parametrize(
    ("example", "strategy", "parts"),
    [
        ("nanogpt.py", "ddp", {"data_s", "forward_backward_s", "optimizer_s", "other_s"}),
        ("sharded.py", "fsdp", {"data_s", "forward_s", "backward_s", "optimizer_s", "other_s"}),
    ],
)
def test_an_example_is_watched(tmp_path: Path, example: str, strategy: str, parts: set[str]) -> None:
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "SAMPLES": "640", "STEPS": "40"}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", ROOT / "examples" / "watch" / example],
        cwd=tmp_path,
        env={**os.environ, **own},
        check=True,
        timeout=GUARD_S,
    )
    with closing(sqlite3.connect(tmp_path / "parabench-results" / "results.db")) as db:
        assert db.execute("SELECT status, strategy, world_size FROM launch").fetchall() == [("ok", strategy, 2)]
        counts = dict(
            db.execute("SELECT metric, count(*) FROM sample WHERE step IS NOT NULL GROUP BY metric").fetchall()
        )
        calls = db.execute("SELECT count(*) FROM collective").fetchone()[0]
    assert counts["step_s"] == 2 * 40
    assert {name for name in counts if name.endswith("_s")} - {"step_s", "device_lag_s"} == parts
    assert calls > 0
