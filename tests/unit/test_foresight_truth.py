"""Emulated machines and their model, and predictions of the recorded truth."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.foresight import timed_model
from benchmarks.foresight.held_out import GIVEN, MEASURED, held_out, summary
from benchmarks.foresight.machines import Session
from benchmarks.foresight.sessions import base, held


def test_the_model_sleeps_in_both_directions_for_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    model = timed_model.factory()
    assert model.batch is not None
    inputs, targets = model.batch(2, torch.Generator().manual_seed(0))
    loss = model.loss(model.module(inputs), targets)
    assert slept == [2 * timed_model.FORWARD_S] * timed_model.BLOCKS
    slept.clear()
    loss.backward()
    assert slept == [2 * timed_model.BACKWARD_S] * timed_model.BLOCKS


def test_a_strategys_held_out_cases_have_the_samples_of_its_base() -> None:
    def samples(sessions: list[Session]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for each in sessions:
            content: dict[str, Any] = {}
            exec(each.suite or "CASES = []", content)
            for sweep in (*content["CASES"], *content.get("COMPUTE", ())):
                axes = sweep.axes
                for strategy in axes["strategy"]:
                    found.setdefault(strategy, set()).update(axes.get("batch_per_rank") or axes["global_batch"])
        return found

    of_base = samples(base())
    of_base.pop("single")
    assert samples(held()) == of_base
    assert set(of_base) == {"ddp", "fsdp", "zero1", "tp"}


def test_predictions_of_the_recorded_truth_keep_their_promise() -> None:
    """The figures of docs/explanation/prediction.md: errors, and how many intervals hold the measured step time."""
    found = list(held_out())
    for links, least in ((MEASURED, 50), (GIVEN, 40)):
        own = [each for each in found if each.links == links]
        errors = [each.error for each in own]
        assert len(own) >= least
        assert np.median(errors) <= 0.06
        assert np.quantile(errors, 0.9) <= 0.13
        assert 0.85 <= np.mean([each.inside for each in own]) <= 0.95
    count = sum(each.links == GIVEN for each in found)
    assert list(summary(found))[-1] == f"without links between nodes: {count} of {count} refused"
