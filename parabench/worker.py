"""One rank of a launch that trains: join the group, build, train, say what was seen."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from parabench.case import Case
from parabench.collectives import membership
from parabench.data.batches import Split, batches, tokens
from parabench.models import MODELS
from parabench.models.model import Model
from parabench.probes.memory import peak_memory
from parabench.probes.steps import StepClock
from parabench.rank import device_of, hand_over, join_group, tie_to_driver
from parabench.registry import find, load
from parabench.strategies import STRATEGIES
from parabench.strategies.recipe import Context, Parallel, Place
from parabench.trainer import Training, make_optimizer, train


@dataclass(frozen=True, slots=True)
class Job:
    """What the driver sends to every rank that trains."""

    case: Case
    steps: int
    folder: Path
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)


def run(job: Job) -> None:
    """The entry of a rank that trains."""
    tie_to_driver()
    hand_over(job, measure)


def measure(job: Job, rank: int) -> dict[str, Any]:
    """Join the group, train, leave the group; returns losses, memory and facts.

    An error leaves the group as it is: its traceback keeps alive what uses the group, and the process ends anyway.
    """
    case = job.case
    torch.set_num_threads(case.threads)
    place = Place(rank, case.world_size, device_of(case, rank))
    grouped = case.strategy != "single"
    if grouped:
        join_group(job, rank)
    result = train_case(job, place)
    # What was built must be gone before the group goes: a DDP reducer that held the last reference to it would end
    # gloo's threads with the interpreter's lock held, and they may be waiting for that lock.
    gc.collect()
    if grouped:
        membership.leave()
    return result


def train_case(job: Job, place: Place) -> dict[str, Any]:
    """Build, train and read what was seen."""
    training, parallel = build(job.case, place)
    clock = StepClock(job.folder / f"marks{place.rank}.f64", job.steps, place.device)
    train(training, clock, job.steps)
    clock.finish()
    return {
        "loss": [float(loss) for loss in training.losses],
        "grad_norm": training.grad_norm,
        "memory": peak_memory(place.device),
        "facts": {**parallel.facts(), "collectives": membership.calls()},
    }


def build(case: Case, place: Place) -> tuple[Training, Parallel]:
    """The case's model made parallel, with its optimizer and data. The same seed on every rank: one same model."""
    torch.manual_seed(case.seed)
    entry = find(MODELS, "model", case.model)
    factory = load(MODELS, "model", case.model)
    with place.device:
        model: Model = factory(entry) if entry else factory()
    parallel: Parallel = load(STRATEGIES, "strategy", case.strategy)(model, Context(case, place))
    stream = tokens(case, model.vocabulary)
    training = Training(
        model=model,
        module=parallel.module,
        optimizer=make_optimizer(parallel.module),
        batches=batches(case, stream, Split(parallel.data_rank, parallel.data_ranks), place.device),
        autocast=torch.autocast(place.device.type, torch.bfloat16, enabled=case.dtype == "bfloat16"),
        losses=[],
    )
    return training, parallel
