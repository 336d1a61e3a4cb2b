"""One rank of a launch that trains: join the group, build, train, say what was seen."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from parabench.collectives import join
from parabench.data.loader import Loading
from parabench.errors import UsageError
from parabench.launch import hang
from parabench.launch.rank import device_of, join_group, loaded_nccl
from parabench.launch.results import MarkLayout, NodeResult, marks_path
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv
from parabench.models.base import Model, apply_options, arithmetic_of, attention_of, build_model, set_arithmetic, sizes
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes import ProbedRank, ProbeReport, environment, left_behind, probes_of, switched_on
from parabench.probes.step_clock import MARKS, StepClock, write_counts
from parabench.registry import load
from parabench.store.metrics import METRICS
from parabench.store.record import Launch
from parabench.strategies import STRATEGIES, base, entry_of
from parabench.strategies.base import ForwardBackward, ParallelModel, RankInfo, StrategyContext, adamw, norm_of
from parabench.strategies.loss_scale import LossScale
from parabench.workloads.pace import Agreement, warm_up
from parabench.workloads.trainer import Training, train
from parabench.workloads.training_samples import Reading, Stall, TrainingReport, record


class TrainingWorkload:
    """Steps of a training; its ranks mark each with five moments."""

    report_type = TrainingReport

    def ranks(self, spec: LaunchSpec) -> int:
        return 1 if entry_of(spec.case.strategy).one_process else spec.world_size

    def prepare(self, spec: LaunchSpec, folder: Path) -> dict[str, str]:
        if spec.traces is not None and spec.protocol.traced:
            spec.traces.mkdir(exist_ok=True)
        return environment(spec.protocol, folder)

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        def position(moments: int) -> str:
            step, part = divmod(moments, MARKS)
            return f"to step {step}, part {part}"

        steps = None if spec.protocol.by_time else spec.protocol.all_steps
        return MarkLayout(columns=MARKS, moments=MARKS, rows=steps, position=position)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> TrainingReport:
        return measure(spec, env, rank)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        record(launch, spec, nodes)


def measure(spec: LaunchSpec, env: RankEnv, rank: int) -> TrainingReport:
    """Join the group, train, leave the group.

    An error leaves the group as it is: its traceback keeps alive what uses the group, and the process ends anyway.
    """
    case: Case = spec.case
    torch.set_num_threads(case.threads)
    rank_info = RankInfo(rank, case.world_size, device_of(case))
    entry = entry_of(case.strategy)
    grouped = not entry.one_rank_only and not entry.one_process
    # Workers are forked before NCCL has memory registered that a fork could take away from it.
    material = prepare(case, rank_info)
    clock = join_group(case, env, rank) if grouped else None
    report = train_case(spec, env, rank_info, material)
    # What was built must be gone before the group goes: a DDP reducer that held the last reference to it would end
    # gloo's threads with the interpreter's lock held, and they may be waiting for that lock.
    gc.collect()
    if grouped:
        join.leave()
    report.clock = clock
    report.rank_facts |= left_behind(spec.protocol, env.folder)
    return report


def train_case(spec: LaunchSpec, env: RankEnv, rank_info: RankInfo, material: Material | None = None) -> TrainingReport:
    """Build, train and read what was seen."""
    case: Case = spec.case
    protocol: Protocol = spec.protocol
    training, parallel, known = build(case, rank_info, material)
    if torch.distributed.is_initialized():
        join.check_groups(rank_info.device, case.backend, case.algorithm)
    clock = StepClock(marks_path(env.folder, rank_info.rank), protocol.all_steps, rank_info.device)
    hang.watch(clock, rank_info.device)
    training.probes = probes = probes_of(
        ProbedRank(
            case=case,
            protocol=protocol,
            info=rank_info,
            parallel=parallel,
            compute=training.compute,
            optimizer=training.optimizer,
            batches=training.batches,
            clock=clock,
            take_step=lambda: train(training, clock, range(clock.steps, clock.steps + 1)),
            traces=spec.traces and spec.traces / f"{case.id}-{re.sub('[^0-9TZ]', '', env.started_utc)}",
        )
    )
    steps = StepsOf(training, clock, rank_info.device)
    counts = protocol.least
    if protocol.by_time:
        store = c10d._get_default_store() if dist.is_initialized() else None
        counts = warm_up(protocol, steps, Agreement(store, rank_info.rank, rank_info.world_size if store else 1))
        write_counts(env.folder, rank_info.rank, counts)
        clock.make_room(counts.timed + protocol.after)
    else:
        steps.take(counts.warmup)
    for probe in probes:
        probe.before_measured()
    steps.take(counts.measured)
    for probe in probes:
        probe.after_measured()
    if protocol.instrumented:
        with switched_on(probes, clock) as watched:
            train(training, watched, range(counts.timed, counts.timed + protocol.instrumented))
    for probe in probes:
        probe.after_instrumented()
    clock.finish()
    facts = parallel.facts()
    numbers = parallel.numbers()
    check_numbers(case, numbers)
    calls = join.calls()
    seen = ProbeReport()
    for probe in probes:
        probe.report(seen)
    return TrainingReport(
        rank=rank_info.rank,
        losses=training.losses.read(),
        grad_norm=training.grad_norm,
        numbers={**seen.numbers, **numbers, **clock.moments.numbers()},
        readings=[Reading(*each) for each in (*seen.readings, *clock.lags())],
        calls=seen.calls,
        stalls=[Stall(*each) for each in seen.stalls],
        facts={
            **known,
            **facts,
            **arithmetic_of(getattr(training.optimizer, "left_out", None)),
            **loaded_nccl(case),
            "collectives": calls,
            **seen.facts,
        },
        rank_facts=seen.rank_facts,
        checksums=seen.checksums,
    )


class StepsOf:
    """The steps of a training, one after the other, as `clock` marks them on `device`."""

    def __init__(self, training: Training, clock: StepClock, device: torch.device) -> None:
        self._training, self._clock, self._device = training, clock, device

    def take(self, steps: int) -> None:
        begin = self._clock.steps
        self._clock.make_room(begin + steps)
        train(self._training, self._clock, range(begin, begin + steps))

    def wait(self) -> None:
        self._clock.moments.synchronize()


def check_numbers(case: Case, numbers: Mapping[str, Any]) -> None:
    """Raise UsageError for a number of a strategy's that is no metric, or none at all."""
    for name, value in numbers.items():
        if name not in METRICS or not isinstance(value, (int, float)):
            raise UsageError(
                f"strategy {case.strategy!r} tells {name} = {value!r}; give a number under a name of metrics.METRICS"
            )


class Material:
    """What needs no other rank: the model, and what its batches are loaded from."""

    def __init__(self, model: Model, loading: Loading) -> None:
        self._held = [(model, loading)]

    def take(self) -> tuple[Model, Loading]:
        """Both, which it holds no longer: what a strategy gives back of a model must be held by nobody."""
        return self._held.pop()


def prepare(case: Case, rank_info: RankInfo) -> Material:
    """The case's model, and its data with workers that run already. The same seed on every rank: one same model."""
    torch.manual_seed(case.seed)
    with rank_info.device:
        model = build_model(case)
    set_arithmetic(model, case)
    return Material(model, Loading(case, model))


def build(
    case: Case, rank_info: RankInfo, material: Material | None = None
) -> tuple[Training, ParallelModel, dict[str, Any]]:
    """The case's model made parallel, with its optimizer and data; and what is known of the model before it is split.

    `material` is the case's, where it was prepared before the group was joined.
    """
    model, loading = (material or prepare(case, rank_info)).take()
    known = {"model": sizes(model) | attention_of(case)}
    apply_options(model, case)
    context = StrategyContext(rank_info.rank, rank_info.world_size, rank_info.device, case)
    parallel: ParallelModel = load(STRATEGIES, "strategy", case.strategy)(model, context)
    parameters = dict(model.module.named_parameters()) if parallel.parameters is None else parallel.parameters
    parallel = replace(parallel, parameters=parameters)
    optimizer = parallel.optimizer or adamw(parameters.values(), fused=case.fused)
    scale = None
    if case.arithmetic.scaled:
        if parallel.compute is not None:
            raise UsageError(
                f"strategy {case.strategy!r} takes its steps by itself and scales no loss, which precision "
                f"{case.precision} needs; use another precision"
            )
        optimizer = LossScale(optimizer, rank_info.device)
        scale = partial(getattr, optimizer, "scale")
    training = Training(
        module=parallel.module,
        compute=parallel.compute
        or ForwardBackward(
            module=parallel.module,
            loss=model.loss,
            context=context,
            gradient_sync=parallel.gradient_sync,
            scale=scale,
        ),
        optimizer=optimizer,
        batches=loading.batches(
            parallel.data_rank,
            parallel.data_ranks,
            rank_info.device,
            # Only tensor parallel over all ranks takes them so; every rank then sees the whole batch.
            columns=(rank_info.rank, rank_info.world_size) if case.split == "dimension" else (0, 1),
        ),
        gradient_norm=unscaled(parallel.gradient_norm or (lambda: norm_of(gradients_of(parallel))), scale),
    )
    return training, parallel, known


def unscaled(norm: Callable[[], float | None], scale: Callable[[], float] | None) -> Callable[[], float | None]:
    """`norm` of the gradients of a loss that was multiplied by `scale`, as it is without."""
    if scale is None:
        return norm

    def of_the_loss() -> float | None:
        found = norm()
        return None if found is None else found / scale()

    return of_the_loss


def gradients_of(parallel: ParallelModel) -> Iterator[Tensor]:
    """The gradients that are there as `norm_of` reads them; gathered where only the strategy knows what is a part."""
    for parameter in (parallel.parameters or {}).values():
        if parameter.grad is not None:
            own = parallel.full_tensor is not base.full_tensor
            yield parallel.full_tensor(parameter, parameter.grad) if own else parameter.grad
