"""Tune DDP's bucket cap during a training run: interleave several caps for a few steps each, and keep the fastest.

With more than two ranks, another cap can change the order of additions, and so the last bit of a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.analysis import format
from parabench.analysis.launch_number import compared
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile
from parabench.errors import UsageError
from parabench.launch.results import Marks
from parabench.probes.ddp import only_ddp
from parabench.store.record import Phase
from parabench.watching.schedule import Schedule

# In the first step with a new cap, DDP guesses its buckets. Then it rebuilds them.
SETTLE, TIMED, ROUNDS = 2, 5, 15
AXIS = "bucket_mib"

# The attributes of a DDP module that belong to its buckets. torch before 2.13 does not have all of them. The last one
# records that DDP has requested the reduction at the end of the first backward of a static graph.
OF_BUCKETS = (
    "reducer", "logger", "bucket_bytes_cap", "bucket_bytes_cap_list", "bucket_bytes_cap_default", "_bucket_config",
    "_static_graph_delay_allreduce_enqueued",
)  # fmt: skip
# Options of a reducer that stay. torch before 2.13 does not have them.
KEPT = ("skip_all_reduce_unused_params", "batched_grad_copy")

Numbers = npt.NDArray[np.float64]


def checked(tune: Mapping[str, Sequence[float]], model: nn.Module) -> tuple[float, ...]:
    """Return the bucket caps of the option `tune` in MiB. Raises UsageError if they or the model are not suitable."""
    try:
        caps = tuple(float(each) for each in tune[AXIS])
        wrong = len(tune) > 1 or len(set(caps)) < max(2, len(caps)) or not all(0 < cap < math.inf for cap in caps)
    except (KeyError, TypeError, ValueError):
        wrong = True
    if wrong:
        raise UsageError(
            f"watch: tune is {tune!r}; give two or more different bucket caps in MiB and nothing else, "
            f"tune={{'{AXIS}': [1, 4, 25]}}"
        )
    module = only_ddp(model)
    if module is None or model is not module:
        raise UsageError(
            "watch: tune needs one DistributedDataParallel as the outermost module; wrap the model in it, after "
            "torch.compile"
        )
    builtin_hook = module._get_ddp_logging_data().get("comm_hook") and not module._comm_hooks
    power_sgd = any(hasattr(state, "error_dict") for _, state in module._comm_hooks)
    if module.mixed_precision is not None or builtin_hook or power_sgd:
        raise UsageError(
            "watch: tune cannot change the buckets of a DistributedDataParallel with mixed_precision, PowerSGD or a "
            "built-in communication hook; leave out tune, or the option"
        )
    return caps


@dataclass(kw_only=True)
class Tuning:
    """The interleaving of bucket `caps` in MiB by `schedule`. All ranks must call `before` before the same steps."""

    module: DistributedDataParallel
    caps: tuple[float, ...]
    schedule: Schedule
    device: torch.device
    log: Callable[[str], None]
    _index: int | None = None
    _over: bool = False

    def before(self, step: int, marks: Callable[[], Marks]) -> None:
        """Set the bucket cap of a step: the cap of its turn, or after the last turn, the fastest cap.

        `marks` returns all timestamps so far. If a rank cannot set a cap, all ranks raise an error.
        """
        turn, _ = self.schedule.turns.get(step, (None, None))
        if turn is not None and turn.arm != self._index:
            self._index = turn.arm
            self._set(self.caps[turn.arm])
        elif step == self.schedule.first_measured and not self._over:
            self._over = True  # a step starts twice if a loader ends before it
            self._set_fastest(marks)

    def _set(self, cap_mib: float) -> None:
        try:
            set_cap(self.module, cap_mib, lambda can: bool(self._reduced(can, dist.ReduceOp.MIN)))
        except Exception as why:
            self.log(f"watch: the tuning of bucket caps ends, and the cap stays as it is: {why}")
            raise

    def _set_fastest(self, marks: Callable[[], Marks]) -> None:
        steps = [self.schedule.of_cap(index) for index in range(len(self.caps))]
        measured = [[at for at, phase in zip(*each, strict=True) if phase is Phase.MEASURE] for each in steps]
        seconds = np.full(np.shape(measured), np.inf)
        try:
            found = marks()
            seconds = (found[:, -1] - found[:, 0])[np.array(measured)]
        finally:  # a rank that fails here must still take part in the reduction
            slowest = self._reduced(seconds, dist.ReduceOp.MAX)
        if not np.isfinite(slowest).all():
            self.log("watch: the tuning of bucket caps has no result, because the times of a rank are missing")
            return
        assert self.schedule.tuning is not None
        turns = np.median(np.log(slowest).reshape(len(self.caps), self.schedule.tuning.rounds, -1), axis=2)
        # All ranks must choose the same cap, even if their processors round logarithms differently.
        best = int(self._reduced(np.argmin(compared(turns)), dist.ReduceOp.MIN))
        self._set(self.caps[best])
        self.log(sentence(self.caps, turns, best))

    def _reduced(self, values: Any, op: Any) -> Any:
        """Return `values` reduced over all ranks. This waits for the device."""
        tensor = torch.as_tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op, group=self.module.process_group)
        return tensor.cpu().numpy()


def set_cap(module: DistributedDataParallel, cap_mib: float, all_can: Callable[[bool], bool] = bool) -> None:
    """Change the bucket cap of a DDP module from the next step on. All ranks must call this between two steps.

    `all_can` receives whether this rank can, and returns whether all can. If not, all ranks raise an error.
    """
    # A second wrapper around the same module takes 1 to 2 ms and does not communicate. Its reducer replaces the other.
    other: DistributedDataParallel | None = None
    failed: Exception | None = None
    try:
        other = DistributedDataParallel(
            module.module,
            device_ids=module.device_ids,
            output_device=module.output_device,
            process_group=module.process_group,
            bucket_cap_mb=cap_mib,
            find_unused_parameters=module.find_unused_parameters,
            gradient_as_bucket_view=module.gradient_as_bucket_view,
            static_graph=module.static_graph,
            init_sync=False,
            **{name: getattr(module, name) for name in KEPT if hasattr(module, name)},
        )
    except Exception as why:
        failed = why
    if not all_can(other is not None) or other is None:
        if other is not None:
            other._remove_autograd_hooks()
        raise failed or RuntimeError("another rank could not change its bucket cap")
    module._remove_autograd_hooks()
    for name in OF_BUCKETS:
        if name in other.__dict__:
            module.__dict__[name] = other.__dict__[name]
    for hook, state in module._comm_hooks:
        dist._register_comm_hook(module.reducer, state, hook)  # type: ignore[attr-defined]


def slower(turns: Numbers, best: int) -> tuple[Numbers, Numbers]:
    """Return the slowdown of each cap relative to the best one, and the half-width of its 95% confidence interval.

    The interval is Student's t over the rounds, for one cap at a time. `turns` are logarithms, shape (caps, rounds).
    """
    rounds = turns.shape[1]
    apart = turns - turns[best]
    half = t_quantile((1 + CONFIDENCE) / 2, rounds - 1) * apart.std(axis=1, ddof=1) / np.sqrt(rounds)
    means = compared(turns)
    return np.expm1(means - means[best]), np.expm1(half)


def sentence(caps: Sequence[float], turns: Numbers, best: int) -> str:
    """Return the sentence about the result of a tuning. `best` is the index of the fastest cap."""
    others = [
        f"{cap:g} MiB {format.signed(by)} (±{format.percent(half)})"
        for at, (cap, by, half) in enumerate(zip(caps, *slower(turns, best), strict=True))
        if at != best
    ]
    return (
        f"Tuning of {len(caps)} bucket caps over {turns.shape[1]} rounds of this run: {caps[best]:g} MiB is fastest; "
        f"{', '.join(others)}. The training goes on with {caps[best]:g} MiB."
    )
