"""DDP's buckets in the instrumented steps: which all-reduce belongs to which, what is in it, and when it was ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.probes.moments import Moment, Moments


class Buckets:
    """Watches one DDP module until `stop`. `bytes` and `parameters` are each bucket's, in the order of reduction."""

    def __init__(self, module: DistributedDataParallel, moments: Moments) -> None:
        self._moments = moments
        logged: dict[str, Any] = module._get_ddp_logging_data()
        self.cap_bytes: int | None = logged.get("bucket_cap_bytes")
        self.bytes = _numbers(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes"))
        # DDP numbers what it reduces in the module's order.
        reduced = [(name, p) for name, p in module.module.named_parameters() if p.requires_grad]
        indices = str(logged.get("rebuilt_per_bucket_param_indices") or "").split(",")
        self.parameters = [[reduced[i][0] for i in _numbers(text, " ")] for text in indices if text.strip()]
        self._seen: list[tuple[int, Moment]] = []
        bucket_of = {name: index for index, names in enumerate(self.parameters) for name in names}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._noting(bucket_of[name]))
            for name, parameter in reduced
            if name in bucket_of
        ]

    def _noting(self, bucket: int) -> Callable[[nn.Parameter], None]:
        seen, now = self._seen, self._moments.now

        def hook(_: nn.Parameter) -> None:
            seen.append((bucket, now()))

        return hook

    def stop(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def index_of(self, position: int, size: int) -> int | None:
        """Which bucket the all-reduce at `position` among DDP's, of `size` bytes, reduced; None if none has that size.

        DDP reduces buckets in their order, all of them in every backward pass that reduces.
        """
        index = position % len(self.bytes) if self.bytes else 0
        return index if index < len(self.bytes) and self.bytes[index] == size else None

    def ready_s(self) -> list[tuple[int, float]]:
        """(bucket, second) of each gradient, in the order in which they came."""
        return [(bucket, self._moments.seconds(moment)) for bucket, moment in self._seen]

    def facts(self) -> dict[str, Any]:
        """What is in the buckets."""
        parameters: list[list[str] | None] = [*self.parameters] or [None] * len(self.bytes)
        of_each = [{"bytes": size, "parameters": names} for size, names in zip(self.bytes, parameters, strict=True)]
        return {"buckets": of_each, "bucket_cap_bytes": self.cap_bytes}


def last_before(seen: Sequence[tuple[int, float]], bucket: int | None, made_s: float) -> float | None:
    """When the last gradient of `bucket` came that came before `made_s`; None when none was seen."""
    before = [at for of, at in seen if of == bucket and at <= made_s]
    return max(before, default=None)


def _numbers(text: Any, between: str = ",") -> list[int]:
    return [int(each) for each in str(text or "").split(between) if each.strip()]
