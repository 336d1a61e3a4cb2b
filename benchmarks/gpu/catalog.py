"""All checks in the order in which they run.

First come cheap checks that explain the failures of others, then the most likely failures of a first user. Checks that
hold the GPU follow one another, because they share a process.
"""

from __future__ import annotations

from benchmarks.gpu import (
    clocks,
    collectives,
    faults,
    launches,
    machine,
    memory,
    nccl,
    sensors,
    sides,
    watched,
)  # fmt: skip
from benchmarks.gpu.check import Check

CHECKS: tuple[Check, ...] = (
    machine.doctor, machine.fork_server,
    clocks.step_clock, collectives.stream_queue, sensors.readings, watched.watching, sensors.energy,
    clocks.host_clock, sensors.pcie_counters,
    nccl.one_rank, launches.loaded, launches.profiled, memory.peaks, launches.strategies,
    faults.out_of_memory, faults.hang, launches.in_turns, launches.compiled,
    collectives.gloo_collectives, sensors.sampling, sides.equal_sides, launches.algorithms,
    collectives.nccl_strategies, collectives.nccl_algorithms, collectives.nccl_collectives,
)  # fmt: skip
