"""Emulated machines and their model, and predictions of the recorded truth."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.foresight import timed_model
from benchmarks.foresight.held_out import GIVEN, MEASURED, held_out, summary
from benchmarks.foresight.machines import Machine, Session
from benchmarks.foresight.measured import idle_share
from benchmarks.foresight.sessions import base, held


def test_the_idle_share_is_that_of_the_windows_alone() -> None:
    # Two cores: idle for two seconds, then busy for two.
    watched = {
        "clock_s": np.array([10.0, 12.0, 14.0]),
        "idle_s": np.array([100.0, 104.0, 104.0]),
        "all_s": np.array([200.0, 204.0, 208.0]),
    }
    assert idle_share(watched, [(10.0, 12.0)]) == 1.0
    assert idle_share(watched, [(11.0, 13.0)]) == 0.5
    assert idle_share(watched, [(11.5, 12.0), (12.0, 13.5)]) == pytest.approx(0.25)
    assert np.isnan(idle_share(watched, []))


def test_every_session_has_a_name_of_its_own_and_a_suite_that_can_be_read() -> None:
    for sessions in (base(), held()):
        assert len({each.name for each in sessions}) == len(sessions)
        for each in sessions:
            assert each.suite is None or compile(each.suite, each.name, "exec")


def test_a_machine_is_named_by_its_shape_and_link() -> None:
    assert [str(each) for each in (Machine(1, 4), Machine(2, 2, "1gbit"))] == ["1x4", "2x2-1gbit"]
    assert Machine(4, 2, "1gbit").ranks == 8


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


def test_a_blocks_gradients_come_after_its_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: seen.append("sleep"))
    model = timed_model.factory()
    for name, parameter in model.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name.rpartition(".")[0]))
    assert model.batch is not None
    inputs, targets = model.batch(1, torch.Generator().manual_seed(0))
    loss = model.loss(model.module(inputs), targets)
    seen.clear()
    loss.backward()
    blocks = [each for each in seen if each != "head.linear"]
    assert len(blocks) == 5 * timed_model.BLOCKS
    # Of each block its sleep, then the weight and bias of both layers.
    for block, at in zip(reversed(range(timed_model.BLOCKS)), range(0, len(blocks), 5), strict=True):
        assert blocks[at] == "sleep"
        assert set(blocks[at + 1 : at + 5]) == {f"blocks.{block}.up", f"blocks.{block}.down"}


def test_the_model_is_the_chain_of_its_parts() -> None:
    model = timed_model.factory()
    assert model.batch is not None
    assert model.head is not None
    inputs, _ = model.batch(2, torch.Generator().manual_seed(0))
    x = inputs
    for block in model.blocks:
        x = block(x)
    torch.testing.assert_close(model.head(x), model.module(inputs))


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
    """The figures of docs/explanation/foresight.md: errors, and how many intervals hold the measured step time."""
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
