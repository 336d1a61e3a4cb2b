"""Fixtures for watched loops."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist


@pytest.fixture
def unanalyzed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record a loop without the analysis of its session, which takes most of the time of a short loop."""
    monkeypatch.setattr("parabench.analysis.ranking.best.closing_lines", lambda data: [])
    monkeypatch.setattr("parabench.analysis.warnings.launches.session_warnings", lambda data: [])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
