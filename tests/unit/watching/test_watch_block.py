"""The block of `watch` in one process: what it records of a loop, and what it leaves alone."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from parabench import watch


def rows(out: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(out / "results.db")) as db:
        return db.execute(query).fetchall()


class Training:
    """A model of one layer that is watched while it trains."""

    def __init__(self, out: Path, **options: Any) -> None:
        self.out, self.said = out, list[str]()
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.options = {"out": out, "log": self.said.append, **options}

    def take(self, steps: Iterable[Any]) -> None:
        for _ in steps:
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()

    def run(self, *epochs: int) -> None:
        with watch(self.model, self.optimizer, **self.options) as steps:
            for count in epochs:
                self.take(steps([torch.ones(2, 4)] * count))


@pytest.mark.parametrize("epochs", [(25,), (29,), (33,), (9, 9, 9, 9)])
def test_a_loop_that_ends_amid_instrumented_steps(tmp_path: Path, epochs: tuple[int, ...]) -> None:
    Training(tmp_path).run(*epochs)
    steps = sum(epochs)
    assert rows(tmp_path, "SELECT count(*) FROM sample WHERE metric = 'step_s'") == [(steps,)]
    parts = rows(
        tmp_path, "SELECT step, metric FROM sample WHERE metric LIKE '%rss_bytes' AND step IS NOT NULL ORDER BY 1, 2"
    )
    each = [f"{part}_rss_bytes" for part in ("backward", "begin", "forward", "optimizer")]
    assert parts == [(step, name) for step in range(25, min(steps, 33)) for name in each]


def test_a_step_that_is_stopped_amid_instruments_is_none(tmp_path: Path) -> None:
    training = Training(tmp_path)

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(27):
            yield torch.ones(2, 4)
        sys.exit(0)

    with pytest.raises(SystemExit), watch(training.model, training.optimizer, **training.options) as steps:
        training.take(steps(batches()))
    assert rows(tmp_path, "SELECT status FROM launch") == [("ok",)]
    assert rows(tmp_path, "SELECT max(step) FROM sample") == [(26,)]
