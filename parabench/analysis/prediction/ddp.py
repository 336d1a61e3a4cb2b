"""A step of DDP as tasks: the parts of one device's step, and an all-reduce of each bucket of gradients.

Every rank computes what one device computed of as many samples, so one rank stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from parabench.analysis.prediction.anatomy import Anatomy
from parabench.analysis.prediction.buckets import Gradient, SecondsOf, assigned
from parabench.analysis.prediction.simulation import ALONE, Contention, Lane, Task, simulate
from parabench.store.record import MIB

COMPUTE, QUEUE = Lane(0), Lane(0, "all ranks")

# What DDP does where nobody names a cap: a small first bucket, so that reducing begins early
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), and 25 MiB for the others.
DEFAULT_CAPS = (MIB, 25 * MIB)


def tasks(anatomy: Anatomy, caps: Sequence[int], seconds: SecondsOf) -> list[Task]:
    """A step with these caps of buckets in bytes, whose all-reduces take `seconds` where nothing disturbs them."""
    found = [Task(part, (COMPUTE,), anatomy.parts[f"{part}_s"]) for part in ("data", "forward")]
    reduced = []
    for backward, all_reduce in _buckets(anatomy.gradients, caps, seconds):
        found.append(Task("backward", (COMPUTE,), backward))
        reduced.append(len(found))
        found.append(Task("all_reduce", (QUEUE,), all_reduce, after=(len(found) - 1,)))
    left = anatomy.parts["backward_s"] - sum(task.seconds for task in found if task.name == "backward")
    found.append(Task("backward", (COMPUTE,), max(0.0, left)))
    found.append(Task("optimizer", (COMPUTE,), anatomy.parts["optimizer_s"], after=tuple(reduced)))
    return found


def _buckets(gradients: Sequence[Gradient], caps: Sequence[int], seconds: SecondsOf) -> Iterator[tuple[float, float]]:
    """Of each bucket how long backward goes on until it is ready, and how long it is reduced."""
    groups = assigned([each.bytes for each in gradients], caps)
    sizes = np.array([sum(gradients[at].bytes for at in group) for group in groups], dtype=float)
    before = 0.0
    for group, took in zip(groups, seconds(sizes).tolist(), strict=True):
        ready = max(before, max(gradients[at].ready_s for at in group))
        yield ready - before, took
        before = ready


def step_s(anatomy: Anatomy, caps: Sequence[int], seconds: SecondsOf, contention: Contention = ALONE) -> float:
    """How long the step takes."""
    return simulate(tasks(anatomy, caps, seconds), contention)[-1].end
