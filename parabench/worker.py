"""One rank of a launch that trains: join the group, build, train, say what was seen."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from parabench.case import Case
from parabench.collectives import membership
from parabench.data.loader import batches
from parabench.errors import UsageError
from parabench.family import STRATEGIES, entry_of
from parabench.models.build import attention_of, build_model, sizes
from parabench.models.options import apply_options
from parabench.probes import nccl_inspector, nccl_log
from parabench.probes.allocator import MemoryClock
from parabench.probes.flops import count_flops
from parabench.probes.instruments import Instruments
from parabench.probes.memory import forget_peak, peak_memory
from parabench.probes.profile import Traces
from parabench.probes.replicas import fingerprints
from parabench.probes.steps import StepClock
from parabench.rank import device_of, hand_over, join_group, tie_to_driver
from parabench.record import METRICS
from parabench.registry import load
from parabench.strategies.compute import ForwardBackward
from parabench.strategies.optimizer import adamw
from parabench.strategies.recipe import Context, Parallel, Place
from parabench.trainer import Training, norm_of, train


@dataclass(frozen=True, slots=True)
class Job:
    """What the driver sends to every rank that trains: `steps` bare ones, then `instrumented` ones, then those on
    request.

    `traces` is the path that the names of traces begin with; with `explain` NCCL's log is read.
    """

    case: Case
    steps: int
    folder: Path
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)
    instrumented: int = 0
    profile: bool = False
    memory_snapshot: bool = False
    traces: Path | None = None
    explain: bool = False


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
    entry = entry_of(case.strategy)
    grouped = not entry.one_rank_only and not entry.one_process
    if grouped:
        join_group(job, rank)
    result = train_case(job, place)
    # What was built must be gone before the group goes: a DDP reducer that held the last reference to it would end
    # gloo's threads with the interpreter's lock held, and they may be waiting for that lock.
    gc.collect()
    if grouped:
        membership.leave()
    told = nccl_inspector.told(os.environ) | (nccl_log.told(job.folder) if job.explain else {})
    return result | {"told": result["told"] | told}


def train_case(job: Job, place: Place) -> dict[str, Any]:
    """Build, train and read what was seen."""
    training, parallel, known = build(job.case, place)
    forget_peak(place.device)
    steps = job.steps + job.instrumented
    clock = StepClock(job.folder / f"marks{place.rank}.f64", steps + job.profile + job.memory_snapshot, place.device)
    train(training, clock, range(job.steps))
    peaks = peak_memory(place.device)
    seen: dict[str, Any] = {"facts": {}, "told": {}}
    memory = MemoryClock(clock, place.device, job.steps)
    if job.instrumented:
        with Instruments(job.case, parallel, place.device, clock.moments) as instruments:
            train(training, memory, range(job.steps, steps))
    traces = Traces(place, lambda: train(training, clock, range(clock.steps, clock.steps + 1)))
    if job.profile:
        traces.profiled()
    if job.memory_snapshot:
        traces.remembered()
    clock.finish()
    if job.instrumented:
        seen = instruments.read(clock.begins())
    if job.traces is not None:
        seen["told"] |= traces.write(job.traces)
    facts = parallel.facts()
    numbers = parallel.numbers()
    check_numbers(job.case, numbers)
    calls = membership.calls()
    # What a step of this training computes, whoever takes it: one plain device tells it for all, after its last step.
    flops = {"flops": count_flops(training)} if job.case == job.case.reference() else {}
    # Only pure data parallel promises equal replicas to the last bit.
    replicated = parallel.data_ranks == place.world_size > 1 and parallel.parameters is not None
    return {
        "loss": [float(loss) for loss in training.losses],
        "grad_norm": training.grad_norm,
        "numbers": {**training.footprint, **peaks, **numbers},
        "readings": memory.readings,
        **seen,
        "facts": {**known, **facts, **flops, "collectives": calls, **seen["facts"]},
        "fingerprints": fingerprints(parallel.parameters or {}, parallel.whole) if replicated else {},
    }


def check_numbers(case: Case, numbers: Mapping[str, Any]) -> None:
    """Raise UsageError for a number of a strategy's that is no metric, or none at all."""
    for name, value in numbers.items():
        if name not in METRICS or not isinstance(value, (int, float)):
            raise UsageError(
                f"strategy {case.strategy!r} tells {name} = {value!r}; give a number under a name of record.METRICS"
            )


def build(case: Case, place: Place) -> tuple[Training, Parallel, dict[str, Any]]:
    """The case's model made parallel, with its optimizer and data; and what is known of the model before it is split.

    The same seed on every rank: one same model.
    """
    torch.manual_seed(case.seed)
    with place.device:
        model = build_model(case)
    known = {"model": sizes(model) | attention_of(case)}
    apply_options(model, case)
    context = Context(case, place)
    parallel: Parallel = load(STRATEGIES, "strategy", case.strategy)(model, context)
    parameters = dict(model.module.named_parameters()) if parallel.parameters is None else parallel.parameters
    parallel = replace(parallel, parameters=parameters)
    training = Training(
        module=parallel.module,
        compute=parallel.compute
        or ForwardBackward(
            module=parallel.module, loss=model.loss, context=context, last_reduces=parallel.last_reduces
        ),
        optimizer=parallel.optimizer or adamw(parameters.values(), fused=case.fused),
        batches=batches(
            case,
            model,
            parallel.data_rank,
            parallel.data_ranks,
            place.device,
            # Only tensor parallel over all ranks takes them so; every rank then sees the whole batch.
            columns=(place.rank, place.world_size) if case.split == "dimension" else (0, 1),
        ),
        counted=parallel.counted,
        gradient_norm=parallel.gradient_norm or (lambda: norm_of(parameters.values(), parallel.whole)),
    )
    return training, parallel, known
