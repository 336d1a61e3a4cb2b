"""A race of DDP's bucket caps in a training that goes on: the caps take turns of a few steps, and the fastest stays.

What is trained is the same: gradients are the mean over ranks whatever buckets they travel in. With more than two ranks
a sum may be added up in another order, and differ in its last bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy import stats
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.analysis.text import format
from parabench.analysis.turns import compared
from parabench.errors import UsageError
from parabench.plan.turns import TurnsProtocol
from parabench.probes.ddp import only_ddp
from parabench.watching.group import Group

# After a new cap the first step reduces by the buckets that DDP guesses, and has it make those that stay.
SETTLE, TIMED = 2, 5
# So that one round in sixteen would be of long turns: none is.
ROUNDS = 15
AXIS = "bucket_mib"
CONFIDENCE = 0.95

# What of a DDP module belongs to its buckets; torch before 2.13 has only some of it. With a static graph a reducer's
# first backward reduces nothing before its end, which it has to be told to: the last is whether it was.
OF_BUCKETS = (
    "reducer", "logger", "bucket_bytes_cap", "bucket_bytes_cap_list", "bucket_bytes_cap_default", "_bucket_config",
    "_static_graph_delay_allreduce_enqueued",
)  # fmt: skip
# Options of a reducer that are to stay; torch before 2.13 has none of them.
KEPT = ("skip_all_reduce_unused_params", "batched_grad_copy")


def checked(race: Mapping[str, Sequence[float]], model: nn.Module) -> tuple[float, ...]:
    """The caps of a race, in MiB. Raises UsageError for one that cannot be run."""
    try:
        caps = tuple(float(each) for each in race[AXIS])
        wrong = len(race) > 1 or len(set(caps)) < 2 or len(set(caps)) < len(caps) or not min(caps) > 0
    except (KeyError, TypeError, ValueError):
        wrong = True
    if wrong:
        raise UsageError(f"watch: race is {race!r}; give two or more bucket caps, race={{'{AXIS}': [1, 4, 25]}}")
    module = only_ddp(model)
    if module is None:
        raise UsageError("watch: a race is of DDP's buckets, and the model has no DistributedDataParallel, or several")
    if model is not module:
        raise UsageError("watch: a race needs DistributedDataParallel outermost; give it what torch.compile returns")
    if module.mixed_precision is not None:
        raise UsageError("watch: DistributedDataParallel's mixed_precision cannot be wrapped anew, so it has no race")
    check_hooks(module)
    return caps


def check_hooks(module: DistributedDataParallel) -> None:
    """Raise UsageError for a communication hook that a reducer made anew would be without, or that would break in it:
    PowerSGD keeps errors and factors of each bucket, in the bucket's shape."""
    named = module._get_ddp_logging_data().get("comm_hook")
    if named and not module._comm_hooks:
        raise UsageError(f"watch: the communication hook {named} cannot be registered anew, so DDP has no race")
    if any(hasattr(state, "error_dict") for _, state in module._comm_hooks):
        raise UsageError("watch: PowerSGD keeps a state of each bucket, so that buckets cannot change, and has no race")


def set_cap(module: DistributedDataParallel, cap_mib: float, all_can: Callable[[bool], bool] = bool) -> None:
    """Reduce in buckets of another cap from the next step on. Call it between two steps, on every rank.

    A second wrapper is made around what `module` wraps, in 1 to 2 ms and without communication. If all ranks could make
    one, its reducer replaces the old one; else the old one stays on all ranks.

    Args:
        all_can: Returns whether all ranks could make a wrapper, given whether this one could. A collective call.

    Raises:
        Exception: The error of this rank, or RuntimeError for that of another rank.
    """
    failed: Exception | None = None
    other: DistributedDataParallel | None = None
    try:
        other = wrapped_again(module, cap_mib)
    except Exception as why:
        failed = why
    agreed_on = False
    try:
        agreed_on = all_can(failed is None)
    finally:
        if other is not None and not agreed_on:
            other._remove_autograd_hooks()
    if failed is not None:
        raise failed
    if other is None or not agreed_on:
        raise RuntimeError("another rank could not change its bucket cap")
    module._remove_autograd_hooks()
    for name in OF_BUCKETS:
        if name in other.__dict__:
            module.__dict__[name] = other.__dict__[name]
    for hook, state in module._comm_hooks:
        dist._register_comm_hook(module.reducer, state, hook)  # type: ignore[attr-defined]


def wrapped_again(module: DistributedDataParallel, cap_mib: float) -> DistributedDataParallel:
    """Return a second wrapper around what `module` wraps, with the same options and another cap."""
    return DistributedDataParallel(
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


def all_ranks_can(module: DistributedDataParallel, device: torch.device, can: bool) -> bool:
    """Return whether every rank of the module's group `can`. A collective call, which waits for the device."""
    count = torch.tensor(float(can), device=device)
    dist.all_reduce(count, group=module.process_group)
    return int(count) == dist.get_world_size(module.process_group)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a race ended: the place of the cap that is fastest on average, and of every cap by how much it is slower, as
    a fraction, with the half-width of its interval over rounds."""

    best: int
    slower: tuple[float, ...]
    half_widths: tuple[float, ...]

    def sentence(self, caps: Sequence[float], rounds: int) -> str:
        others = [
            f"{caps[at]:g} MiB {format.signed(self.slower[at])} (±{format.percent(self.half_widths[at])})"
            for at in range(len(caps))
            if at != self.best
        ]
        return (
            f"Race of {len(caps)} bucket caps over {rounds} rounds of this run: {caps[self.best]:g} MiB is fastest; "
            f"{', '.join(others)}. The training goes on with {caps[self.best]:g} MiB."
        )


def verdict(steps: Sequence[Sequence[float]], protocol: TurnsProtocol) -> Verdict:
    """Of each cap's timed steps in seconds, in their order, of all rounds of a race. The interval is Student's over the
    rounds of the difference to the best, one cap at a time."""
    turns = np.array([np.median(np.log(each).reshape(protocol.rounds, -1), axis=1) for each in steps])
    best = int(np.argmin(compared(turns)))
    apart = turns - turns[best]
    means = compared(turns) - compared(turns)[best]
    half = stats.t.ppf((1 + CONFIDENCE) / 2, turns.shape[1] - 1) * apart.std(axis=1, ddof=1) / np.sqrt(turns.shape[1])
    return Verdict(best, tuple(map(float, np.expm1(means))), tuple(map(float, np.expm1(half))))


def agreed(group: Group, mine: Verdict | None) -> Verdict | None:
    """The verdict of whichever rank came to it first, or that this had none: buckets must be the same on all, also
    where one rank came so late that others had given up waiting for it."""
    first = json.loads(group.agree("race", json.dumps(mine and asdict(mine))))
    return first and Verdict(first["best"], tuple(first["slower"]), tuple(first["half_widths"]))


def told(marks: Any, turns_of: Sequence[int | None]) -> list[list[float]]:
    """By place, the seconds of the timed steps that a rank marked: `turns_of` has the place of each row that is timed,
    None of all others."""
    places = sorted({each for each in turns_of if each is not None})
    seconds = marks[:, -1] - marks[:, 0]
    return [[float(s) for s, at in zip(seconds, turns_of, strict=False) if at == place] for place in places]


def slowest(ranks: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Of each place's steps the longest of all ranks."""
    return [list(map(max, zip(*of_ranks, strict=True))) for of_ranks in zip(*ranks, strict=True)]
