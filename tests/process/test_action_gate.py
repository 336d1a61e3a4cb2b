"""The GitHub Action's script with a real `ab`: a repository of two commits, of which the second trains slower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT

MODEL = """
import time

import torch
from torch import nn

from parabench import Model


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        time.sleep({seconds})
        return self.linear(x)


def batch(n, generator):
    return torch.randn(n, 4, generator=generator), torch.zeros(n, dtype=torch.long)


def model():
    return Model(module=Slow(), loss=nn.CrossEntropyLoss(), batch=batch)
"""
SUITE = """\"\"\"Is it slow?\"\"\"
from parabench import Protocol, sweep

CASES = sweep(strategy="single", model="own:model")
PROTOCOL = Protocol(warmup=2, steps=3, launches=2, instrumented=0)
"""


def git(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.slow  # a whole ab, of which test_ab_sides has another
def test_a_planted_slowdown_fails_the_job_and_says_so(tmp_path: Path) -> None:
    repository, runner = tmp_path / "repository", tmp_path / "runner"
    repository.mkdir()
    runner.mkdir()
    git(repository, "init", "-q")
    (repository / "suite.py").write_text(SUITE)
    for seconds in (0.02, 0.06):
        (repository / "own.py").write_text(MODEL.format(seconds=seconds))
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", f"a step sleeps {seconds} s")
    (tmp_path / "output").touch()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(runner),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "SUITE": "suite.py",
        "BASE": "HEAD^",
        "ALPHA": "0.05",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run([ROOT / "action/gate"], cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Regression: " in done.stdout
    assert "verdict=regression\n" in (tmp_path / "output").read_text()
    assert "Regression" in (tmp_path / "summary").read_text()
    out = runner / "parabench-out"
    assert {"results.db", "report.html", "verdict.md", "junit.xml"} <= {each.name for each in out.iterdir()}
