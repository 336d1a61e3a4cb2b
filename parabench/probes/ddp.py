"""DDP: its buckets, the times of its gradients, and the end of its forward."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from parabench.machine.accelerator import Moment
from parabench.probes.step_clock import Moments, step_of

# The attribute of a module with a function that is called instead of its class's. `module.compile()` sets it.
ATTRIBUTE = "_compiled_call_impl"


class CallAndNotify:
    """A function that calls a module, and then `callback`. `before` is the replaced function, or None.

    Copies of the module (`torch.save`, `copy.deepcopy`) have None instead, so they can be loaded without parabench.
    """

    def __init__(
        self, before: Callable[..., Any] | None, call: Callable[..., Any], callback: Callable[[], object]
    ) -> None:
        self.before, self.call, self._callback = before, call, callback

    def __call__(self, *args: Any, **named: Any) -> Any:
        result = self.call(*args, **named)
        if not torch.compiler.is_compiling():  # else the graph would break
            self._callback()
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "enter_result")  # None


@contextlib.contextmanager
def after_forward(module: nn.Module, callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` after every forward of the module in the block, but not for TorchScript.

    A forward hook would be slower: torch needs up to 20 us more per call.
    """
    if isinstance(module, torch.jit.ScriptModule):
        yield
        return
    # The module's __setattr__ may raise an error, or set it on a wrapped module.
    held = vars(module)
    before = held.get(ATTRIBUTE)
    called = held[ATTRIBUTE] = CallAndNotify(before, before or module._call_impl, callback)
    try:
        yield
    finally:
        # `module.compile()` may have replaced it.
        if held.get(ATTRIBUTE) is called:
            del held[ATTRIBUTE]
            if before is not None:
                held[ATTRIBUTE] = before


def compiled_in_place(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called. A replacement by `after_forward` does not count."""
    held = vars(module).get(ATTRIBUTE)
    while isinstance(held, CallAndNotify):
        held = held.before
    return held is not None


def only_ddp(module: nn.Module) -> DistributedDataParallel | None:
    """Return the only DDP module in `module`. If there are several or none, return None."""
    replicas = [each for each in module.modules() if isinstance(each, DistributedDataParallel)]
    return replicas[0] if len(replicas) == 1 else None


class GradientsReady:
    """Record the times when the gradients of a module's parameters are accumulated, until `stop`."""

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
        """Stop recording."""
        for hook in self._hooks:
            hook.remove()

    def seconds(self) -> dict[str, list[float]]:
        """Return {parameter: the times when its gradient was ready, in every step}."""
        return {name: [self._moments.seconds(each) for each in seen] for name, seen in self._seen.items()}

    def after_backward(self, begins: Sequence[float], backward: Sequence[float]) -> list[tuple[str, int, float]]:
        """Return (parameter, bytes, seconds from the start of backward to its gradient), in the order of time.

        The seconds are medians over steps that start at `begins` and whose backward starts at `backward`.
        """
        found = []
        for name, seen in self.seconds().items():
            after = [at - backward[step] for at in seen if (step := step_of(at, begins)) is not None]
            if after:
                found.append((name, self._bytes[name], statistics.median(after)))
        return sorted(found, key=lambda each: each[2])


class Buckets:
    """The buckets of one DDP module in the order of reduction, and the times of gradients, until `stop`.

    If the `parameters` of the buckets are unknown, they are empty, and `reason` is set.
    """

    def __init__(self, module: DistributedDataParallel, moments: Moments) -> None:
        logged: dict[str, Any] = module._get_ddp_logging_data()
        self.cap_bytes: int | None = logged.get("bucket_cap_bytes")
        self.bytes = _numbers(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes"))
        # DDP numbers the parameters in the module's order.
        reduced = [(name, p) for name, p in module.module.named_parameters() if p.requires_grad]
        rebuilt = str(logged.get("rebuilt_per_bucket_param_indices") or "").split(",")
        indices = [_numbers(text, " ") for text in rebuilt if text.strip()]
        self.reason: str | None = None
        if not indices:
            indices = _first_assignment(module, reduced)
            if [sum(reduced[i][1].nbytes for i in bucket) for bucket in indices] != self.bytes:
                indices, self.reason = (
                    [],
                    "DDP does not report the contents of its buckets, and its rule gives other sizes",
                )
        self.parameters = [[reduced[i][0] for i in bucket] for bucket in indices]
        self._ready = GradientsReady(module.module, moments)
        self.stop = self._ready.stop

    def index_of(self, position: int, size: int) -> int | None:
        """Return the index of the bucket of DDP's all-reduce number `position`; None if `size` bytes do not fit it."""
        # DDP reduces all buckets in their order in each backward pass that reduces.
        index = position % len(self.bytes) if self.bytes else 0
        return index if index < len(self.bytes) and self.bytes[index] == size else None

    def ready_s(self) -> list[tuple[int, float]]:
        """Return (bucket, time) of each gradient of every step. The bucket is an index."""
        seconds = self._ready.seconds()
        return [(at, each) for at, names in enumerate(self.parameters) for name in names for each in seconds[name]]

    def facts(self) -> dict[str, Any]:
        """Return {"buckets": [{"bytes", "parameters"}], "bucket_cap_bytes"}, and the reason for unknown parameters."""
        parameters: list[list[str] | None] = [*self.parameters] or [None] * len(self.bytes)
        of_each = [{"bytes": size, "parameters": names} for size, names in zip(self.bytes, parameters, strict=True)]
        why = {} if self.reason is None else {"buckets_reason": self.reason}
        return {"buckets": of_each, "bucket_cap_bytes": self.cap_bytes, **why}


def _first_assignment(module: DistributedDataParallel, reduced: Sequence[tuple[str, nn.Parameter]]) -> list[list[int]]:
    """Return the indices of the parameters in each of DDP's first buckets.

    DDP keeps these buckets with `find_unused_parameters`. This is the rule of
    `DistributedDataParallel._ddp_init_helper` (torch/nn/parallel/distributed.py).
    """
    first = [dist._DEFAULT_FIRST_BUCKET_BYTES] if module.bucket_bytes_cap_default else []  # type: ignore[attr-defined]
    limits = module.bucket_bytes_cap_list or [*first, module.bucket_bytes_cap]
    parameters: list[Tensor] = [parameter for _, parameter in reduced]
    dense = [False] * len(parameters)
    indices, _ = dist._compute_bucket_assignment_by_size(parameters, limits, dense)  # type: ignore[attr-defined]
    return [list(bucket) for bucket in reversed(indices)]


def _numbers(text: Any, between: str = ",") -> list[int]:
    return [int(each) for each in str(text or "").split(between) if each.strip()]
