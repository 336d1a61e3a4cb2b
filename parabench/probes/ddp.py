"""What DDP does in the instrumented steps: its buckets, and what it logs of itself, so that two instruments can be
compared.

torch's reducer takes the time at five moments of a step (`torch/csrc/distributed/c10d/reducer.cpp`, `logger.cpp`):
forward begins; the module's forward is over, which it calls the begin of backward; the first bucket is ready; the last
gradient was there; all buckets are reduced and copied back. Reading a step's moments is left to the next step's
forward; here it is done after the last.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from parabench.machine.accelerator import Moment
from parabench.probes import CaseReport, Probe, ProbedRank
from parabench.probes.step_clock import Moments, step_of
from parabench.strategies.base import StepMarker

# Where a module holds what it is called by, where that is not its class's.
PLACE = "_compiled_call_impl"


class Call:
    """A module's call, after which `tell` is called. `before` is what had its place; None where the module had none.

    A copy of the module, by pickle (`torch.save`) or `copy.deepcopy`, has None in its place, as a module has of its
    own: it is loaded where no parabench is. In what torch.compile makes of a function that calls the module `tell` is
    left out, so that no graph breaks at it.
    """

    def __init__(self, before: Callable[..., Any] | None, call: Callable[..., Any], tell: Callable[[], object]) -> None:
        self.before, self.call, self._tell = before, call, tell

    def __call__(self, *args: Any, **named: Any) -> Any:
        result = self.call(*args, **named)
        if not torch.compiler.is_compiling():
            self._tell()
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "enter_result")  # None


@contextlib.contextmanager
def after_forward(module: nn.Module, tell: Callable[[], object]) -> Iterator[None]:
    """While the block runs, `tell` is called after every forward of the module; never of TorchScript's.

    It takes the place that `module.compile()` has. A forward hook would do as well, but has torch take a longer way
    through `Module._call_impl`: 20 us more a call where a step leaves nothing of that in the caches.
    """
    if isinstance(module, torch.jit.ScriptModule):
        yield
        return
    # Past the module's own __setattr__, which may refuse, or set it on a module that this one wraps.
    held = vars(module)
    before = held.get(PLACE)
    called = held[PLACE] = Call(before, before or module._call_impl, tell)
    try:
        yield
    finally:
        # It is left alone where it was taken for good, as by `module.compile()`.
        if held.get(PLACE) is called:
            del held[PLACE]
            if before is not None:
                held[PLACE] = before


def compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called; what tells of its forwards is none of that."""
    held = vars(module).get(PLACE)
    while isinstance(held, Call):
        held = held.before
    return held is not None


def only_ddp(module: nn.Module) -> DistributedDataParallel | None:
    """The DDP module in `module`. Of several, nobody can tell whose bucket a call reduces: then it is None too."""
    replicas = [each for each in module.modules() if isinstance(each, DistributedDataParallel)]
    return replicas[0] if len(replicas) == 1 else None


class GradientsReady:
    """Notes when each gradient of a module was accumulated, until `stop`."""

    def __init__(self, module: nn.Module, moments: Moments) -> None:
        self._moments = moments
        trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self._bytes = {name: each.nbytes for name, each in trained.items()}
        self._seen: dict[str, list[Moment]] = {name: [] for name in trained}
        self._hooks = [
            each.register_post_accumulate_grad_hook(partial(self._note, self._seen[name]))
            for name, each in trained.items()
        ]

    def _note(self, seen: list[Moment], _: nn.Parameter) -> None:
        seen.append(self._moments.now())

    def stop(self) -> None:
        """Note nothing from here on."""
        for hook in self._hooks:
            hook.remove()

    def seconds(self) -> dict[str, list[float]]:
        """Return when the gradient of each parameter was ready, in every step."""
        return {name: [self._moments.seconds(each) for each in seen] for name, seen in self._seen.items()}

    def after_backward(self, begins: Sequence[float], backward: Sequence[float]) -> list[tuple[str, int, float]]:
        """Return (name, bytes, seconds from the start of backward) of each parameter, the median over the steps that
        began at `begins` and whose backward began at `backward`, in the order in which gradients are ready."""
        found = []
        for name, seen in self.seconds().items():
            after = [at - backward[step] for at in seen if (step := step_of(at, begins)) is not None]
            if after:
                found.append((name, self._bytes[name], statistics.median(after)))
        return sorted(found, key=lambda each: each[2])


class Buckets:
    """Which all-reduce reduced which bucket of one DDP module, and when each gradient was ready, until `stop`.

    `bytes` and `parameters` are each bucket's, in the order of reduction. `parameters` is empty where it is not known
    what is in them; `reason` says why.
    """

    def __init__(self, module: DistributedDataParallel, moments: Moments) -> None:
        logged: dict[str, Any] = module._get_ddp_logging_data()
        self.cap_bytes: int | None = logged.get("bucket_cap_bytes")
        self.bytes = _numbers(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes"))
        # DDP numbers what it reduces in the module's order.
        reduced = [(name, p) for name, p in module.module.named_parameters() if p.requires_grad]
        told = str(logged.get("rebuilt_per_bucket_param_indices") or "").split(",")
        indices = [_numbers(text, " ") for text in told if text.strip()]
        self.reason: str | None = None
        if not indices:
            indices = _first_assignment(module, reduced)
            if [sum(reduced[i][1].nbytes for i in bucket) for bucket in indices] != self.bytes:
                indices, self.reason = [], "DDP does not tell what is in its buckets, and its rule makes other sizes"
        self.parameters = [[reduced[i][0] for i in bucket] for bucket in indices]
        self._ready = GradientsReady(module.module, moments)
        self.stop = self._ready.stop

    def index_of(self, position: int, size: int) -> int | None:
        """Which bucket the all-reduce at `position` among DDP's, of `size` bytes, reduced; None if none has that size.

        DDP reduces buckets in their order, all of them in every backward pass that reduces.
        """
        index = position % len(self.bytes) if self.bytes else 0
        return index if index < len(self.bytes) and self.bytes[index] == size else None

    def ready_s(self) -> list[tuple[int, float]]:
        """Return (bucket, second) of each gradient of every step."""
        seconds = self._ready.seconds()
        return [(at, each) for at, names in enumerate(self.parameters) for name in names for each in seconds[name]]

    def facts(self) -> dict[str, Any]:
        parameters: list[list[str] | None] = [*self.parameters] or [None] * len(self.bytes)
        of_each = [{"bytes": size, "parameters": names} for size, names in zip(self.bytes, parameters, strict=True)]
        why = {} if self.reason is None else {"buckets_reason": self.reason}
        return {"buckets": of_each, "bucket_cap_bytes": self.cap_bytes, **why}


def _first_assignment(module: DistributedDataParallel, reduced: Sequence[tuple[str, nn.Parameter]]) -> list[list[int]]:
    """Which of the reduced parameters are in each bucket that DDP makes before any backward, and keeps where it looks
    for unused parameters: as `DistributedDataParallel._ddp_init_helper` does it (torch/nn/parallel/distributed.py),
    which deals out a list of caps from the module's first parameters on, whose bucket is reduced last."""
    first = [dist._DEFAULT_FIRST_BUCKET_BYTES] if module.bucket_bytes_cap_default else []  # type: ignore[attr-defined]
    limits = module.bucket_bytes_cap_list or [*first, module.bucket_bytes_cap]
    parameters: list[Tensor] = [parameter for _, parameter in reduced]
    dense = [False] * len(parameters)
    indices, _ = dist._compute_bucket_assignment_by_size(parameters, limits, dense)  # type: ignore[attr-defined]
    return [list(bucket) for bucket in reversed(indices)]


def last_before(seen: Sequence[tuple[int, float]], bucket: int | None, made_s: float) -> float | None:
    """When the last gradient of `bucket` came that came before `made_s`; None when none was seen."""
    before = [at for of, at in seen if of == bucket and at <= made_s]
    return max(before, default=None)


def _numbers(text: Any, between: str = ",") -> list[int]:
    return [int(each) for each in str(text or "").split(between) if each.strip()]


# One step in a hundred, torch's own choice (kDDPRuntimeLoggingSampleRate).
USUAL_RATE = 100

# DDP's name of each span, in nanoseconds, and ours. Its "overlap" is one span too: from the first bucket to the last
# gradient, whether anything travelled in between or not.
SPANS = {
    "forward_compute_time": "forward_s",
    "backward_compute_time": "backward_s",
    "backward_comm_time": "communication_s",
    "backward_compute_comm_overlap_time": "overlap_s",
}


class DdpLoggerProbe(Probe):
    """DDP logs every instrumented step, and the end of the module's forward is noted beside it."""

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        self._forward_end: Moment | None = None
        self._logged: dict[str, Any] = {}

    @contextmanager
    def instrumented(self, clock: StepMarker) -> Iterator[StepMarker]:
        module = only_ddp(self.rank.module)
        if module is None:
            yield clock
            return
        module._set_ddp_runtime_logging_sample_rate(1)
        try:
            with after_forward(module, self._forward_is_over):
                yield clock
        finally:
            # Afterwards it logs as seldom as before; what is kept is the last step's.
            logger: Any = module.logger
            logger.set_runtime_stats_and_log()
            self._logged = module._get_ddp_logging_data()
            module._set_ddp_runtime_logging_sample_rate(USUAL_RATE)

    def _forward_is_over(self) -> None:
        self._forward_end = self.rank.clock.moments.now()

    def report(self, report: CaseReport) -> None:
        """The last logged step's spans in seconds, None where DDP did not take a moment.

        `forward_end_s` is on the clock that all processes share: with it the spans' moments can be found in our tables.
        """
        if self._forward_end is None:
            return
        forward_end = self.rank.clock.moments.seconds(self._forward_end)
        spans = {ours: self._logged.get(theirs) for theirs, ours in SPANS.items()}
        report.rank_facts["ddp_logger"] = {
            "step": step_of(forward_end, self.rank.clock.begins()),
            "iteration": self._logged.get("iteration"),
            "forward_end_s": forward_end,
            **{name: nanoseconds / 1e9 if nanoseconds else None for name, nanoseconds in spans.items()},
        }
