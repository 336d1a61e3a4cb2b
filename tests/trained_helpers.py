"""A strategy's training against one device's, many of them in one group of ranks."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from guard import GUARD_S
from rounding_helpers import differences, wide, widened

from parabench import Model
from parabench.collectives import join
from parabench.launch.processes import run_processes
from parabench.launch.rank import die_with_driver, join_group
from parabench.launch.rendezvous import LOOPBACK
from parabench.launch.workload import RankEnv
from parabench.models import gpt_entry
from parabench.models.gpt import gpt
from parabench.plan.case import Case
from parabench.strategies.base import RankInfo
from parabench.workloads import trainer as worker

TRAINED_STEPS = 5


class DampedAdamW(torch.optim.AdamW):
    """AdamW whose `eps` is larger than most gradients. As it is, it turns the rounding of a gradient that is zero (the
    keys' bias) into whole steps, and forgives one that is wrong by a factor."""

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings)
        for group in self.param_groups:  # which may have brought settings of their own
            group |= {"lr": 1e-2, "eps": 1e-2}


TRAINED_TOKENS = 16
BLOCKS = 2


def small_gpt() -> Model:
    """Our decoder, as small as it can be while four ranks can share its layers and blocks can be grouped: what is
    trained so often must be quick."""
    return gpt(gpt_entry(layers=BLOCKS, heads=4, width=64, vocabulary=256, summary=""), Case(seq_len=TRAINED_TOKENS))


def train_in_group(
    cases: Sequence[Case], folder: Path, references: Mapping[str, Path] | None, *, deadline_s: float
) -> None:
    """Start the ranks that train the cases, and see them end well before the deadline."""
    folder.mkdir(exist_ok=True)
    ended = run_processes(
        trained,
        (cases, folder, references),
        size=cases[0].world_size,
        deadline_s=deadline_s,
        logs=folder / "logs",
    )
    assert ended.ok, [path.read_text() for path in folder.glob("logs/**/stderr.log")]


def trained(cases: Sequence[Case], folder: Path, references: Mapping[str, Path] | None) -> None:
    """Train each case a few steps, all in one group, which is the first one's: they must agree in what a group is made
    of. Compare each with its reference, {id of the reference: path}, or make it: losses, every gradient of the first
    step, every parameter after the last."""
    die_with_driver()
    os.environ.update(LOOPBACK)
    torch.set_num_threads(1)
    # Every strategy's optimizer, also one that it makes itself.
    torch.optim.AdamW = DampedAdamW  # type: ignore[misc]
    rank = int(os.environ["RANK"])
    grouped = cases[0].strategy != "single"
    if grouped:
        join_group(cases[0], RankEnv(folder=folder, timeout_s=GUARD_S), rank)
    for number, case in enumerate(cases):
        with wide(case):
            outcome = train_visibly(case, rank)
        if references is None:
            torch.save(outcome, folder / f"{case.id}.pt")
        else:
            expected = torch.load(references[case.reference().id], weights_only=True)
            report = {
                "loss": outcome["loss"],
                "expected_loss": expected["loss"],
                "gradients": differences(outcome["gradients"], expected["gradients"]),
                "parameters": differences(outcome["parameters"], expected["parameters"]),
                "missing": sorted(expected["parameters"].keys() - outcome["gradients"].keys()),
                "calls": join.calls(),
            }
            (folder / f"case{number}-rank{rank}.json").write_text(json.dumps(report))
        del outcome
        gc.collect()
    if grouped:
        join.leave()


def train_visibly(case: Case, rank: int) -> dict[str, Any]:
    """What this rank sees: losses, perhaps none, and what it holds of the gradients and of the parameters."""
    training, parallel, _ = worker.build(case, RankInfo(rank, case.world_size, torch.device("cpu")))
    held = parallel.parameters
    losses, gradients = [], {}
    for step in range(TRAINED_STEPS):
        inputs, targets = widened(next(training.batches))
        loss = training.compute(inputs, targets, NoClock())
        if step == 0:
            gradients = {n: parallel.full_tensor(p, p.grad).clone() for n, p in held.items() if p.grad is not None}
        training.optimizer.step()
        training.optimizer.zero_grad()
        if loss is not None:
            losses.append(float(loss))
    return {
        "loss": losses,
        "gradients": gradients,
        "parameters": {n: parallel.full_tensor(p, p.detach()).clone() for n, p in held.items()},
    }


class NoClock:
    def mark(self) -> None: ...

    def skip(self) -> None: ...
