"""What `parabench collectives` is asked for of how calls are timed, and what of it makes no sense."""

from __future__ import annotations

from typing import Any

from parabench.collectives import is_backends
from parabench.errors import UsageError
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import LATENCY, CollectiveProtocol

# The options that are fields of a protocol.
OPTIONS = ("mode", "graph", "launches", "iterations", "batches", "measure_s", "warmup")


def protocol_of(deadline_s: float | None, **given: Any) -> CollectiveProtocol:
    """How each launch measures, by the options that were `given`. Raises UsageError where two contradict each other."""
    if given.get("mode") == LATENCY:
        for option, name in (("--batches", "batches"), ("--measure-seconds", "measure_s")):
            if name in given:
                raise UsageError(
                    f"{option} {given[name]:g} is for mode throughput, and mode latency times every call; leave it out"
                )
    if "iterations" in given and "measure_s" in given:
        raise UsageError(
            f"--iterations {given['iterations']} and --measure-seconds {given['measure_s']:g} both say how many calls "
            "are timed; give one of them"
        )
    return CollectiveProtocol(**given, deadline_s=deadline_s)


def check_captured(case: CollectiveCase) -> None:
    """Raise UsageError for a case whose calls no CUDA graph can hold."""
    if case.backend != "nccl":
        raise UsageError(f"--graph captures NCCL's kernels, and the backend here is {case.backend}; leave --graph out")
    if not is_backends(case.algorithm):
        raise UsageError(
            f"--graph captures NCCL's own calls, and {case.algorithm} is made of many; leave --graph out, or use "
            "--algorithm native"
        )
