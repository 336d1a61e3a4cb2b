"""The file of a step clock's marks where its disk has no room for more."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from parabench.probes.step_clock import StepClock, read_marks


def test_where_there_is_no_room_for_more_steps_those_before_are_kept(tmp_path: Path) -> None:
    """A file may be as long as some of the steps need, as on a disk that becomes full amid a write."""
    clock = StepClock(tmp_path / "marks", 1024, torch.device("cpu"))
    clock.mark()
    size = (tmp_path / "marks").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            clock.make_room(4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    clock.mark()
    assert not np.isnan(read_marks(tmp_path / "marks", None)[0, :2]).any()
