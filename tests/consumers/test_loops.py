"""Run the examples that watch the training loops of other libraries."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guard import GUARD_S
from paths import ROOT
from process_helpers import query

EXAMPLES = ROOT / "examples" / "watch"
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]


def run(folder: Path, example: str, *launcher: str, **environment: str) -> list[Any]:
    """Run an example. Return its launch, and the number of samples of each step metric on rank 0."""
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "SAMPLES": "320", "HF_HUB_OFFLINE": "1", **environment}
    subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / example)],
        cwd=folder,
        env={**os.environ, **own},
        check=True,
        timeout=GUARD_S,
    )
    store = folder / "parabench-results" / "results.db"
    (launch,) = query(store, "SELECT status, strategy, world_size, model FROM launch")
    where = "rank = 0 AND step IS NOT NULL AND metric LIKE '%\\_s' ESCAPE '\\'"
    return [launch, dict(query(store, f"SELECT metric, count(*) FROM sample WHERE {where} GROUP BY metric"))]


PARTS = ("step_s", "data_s", "forward_s", "backward_s", "optimizer_s", "other_s")


def test_hugging_face_s_trainer_is_watched(tmp_path: Path) -> None:
    launch, counts = run(tmp_path, "hf_trainer.py", *TORCHRUN)
    assert launch == ("ok", "ddp", 2, "modeling_gpt2:GPT2LMHeadModel")
    assert counts == dict.fromkeys(PARTS, 320 // 8)


@pytest.mark.parametrize("devices", [1, 2])
def test_lightning_s_trainer_is_watched(tmp_path: Path, devices: int) -> None:
    launcher = TORCHRUN if devices == 2 else []
    launch, counts = run(tmp_path, "lightning_trainer.py", *launcher, DEVICES=str(devices))
    assert launch == ("ok", "ddp" if devices == 2 else "single", devices, "lightning_trainer:Digits")
    assert counts == dict.fromkeys(PARTS, 320 // 8 // devices)
