"""Nested observers of c10d's calls."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from parabench.probes import backend_calls
from parabench.probes.backend_calls import native_calls


class Seen:
    """An observer that keeps the names of the calls that it follows."""

    def __init__(self) -> None:
        self.ops: list[str] = []

    def follow(self, op: str, group: Any, results: Any, call: Callable[[], Any], *, waits: bool = False) -> Any:
        self.ops.append(op)
        return call()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_native_calls_are_the_innermost_observers(alone: None, capfd: pytest.CaptureFixture[str]) -> None:
    outer, inner = Seen(), Seen()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with native_calls(outer, "cpu"):
            dist.all_reduce(torch.ones(1))
            with native_calls(inner, "cpu"):
                dist.broadcast(torch.ones(1), 0)
            dist.barrier()
        dist.all_reduce(torch.ones(1))
    assert (outer.ops, inner.ops) == (["all_reduce", "barrier"], ["broadcast"])
    assert not warned
    assert "previously registered kernel" not in capfd.readouterr().err
    assert not backend_calls._registered
