"""All checks in the order in which they run.

First come cheap checks that explain the failures of others, then what a first user meets, most likely failures first.
Checks that hold the GPU follow one another, because they share a process.
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
    plausible,
    sensors,
    sides,
    watched,
)
from benchmarks.gpu.check import Check

CHECKS: tuple[Check, ...] = (
    machine.doctor,
    machine.fork_server,
    clocks.step_clock,
    plausible.plausible,
    collectives.stream_queue,
    sensors.readings,
    watched.watching,
    sensors.energy,
    clocks.host_clock,
    sensors.pcie_counters,
    nccl.one_rank,
    launches.loaded,
    launches.profiled,
    memory.peaks,
    launches.strategies,
    faults.out_of_memory,
    faults.hang,
    launches.in_turns,
    launches.compiled,
    collectives.gloo_collectives,
    sensors.sampling,
    sides.equal_sides,
    launches.algorithms,
    collectives.nccl_strategies,
    collectives.nccl_algorithms,
    collectives.nccl_collectives,
)
