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

SHARED = "2 ranks share the GPU over NCCL 2.30 or newer: "

CHECKS: tuple[Check, ...] = (
    Check("doctor", "names the device; no traceback", 120, machine.doctor),
    Check("imports", "measuring does not need ruptures", 120, machine.imports),
    Check("fork-server", "the server has not touched CUDA; its child can use it", 90, machine.fork_server),
    Check(
        "step-clock",
        "steps of 1, 10 and 100 ms within 0.1% of CUDA's events, and 20 us for the timestamps",
        60,
        clocks.step_clock,
        holds_gpu=True,
    ),
    Check(
        "plausible",
        "a copy at {:.0%} to {:.0%}, a bf16 product at {:.0%} to {:.0%} of the data sheet".format(
            *plausible.COPY_SHARE, *plausible.PRODUCT_SHARE
        ),
        60,
        plausible.plausible,
        holds_gpu=True,
    ),
    Check(
        "stream-queue",
        "run and wait return before the job is over; order kept; failures raise",
        60,
        collectives.stream_queue,
        rehearsed=False,
        holds_gpu=True,
    ),
    Check(
        "nvml-readings",
        f"all readings take less than {sensors.MOST_TICK_S * 1e3:.0f} ms",
        60,
        sensors.readings,
        rehearsed=False,
        holds_gpu=True,
    ),
    Check(
        "watch",
        "same losses bit by bit, plausible times, same peak memory, no other CUDA context",
        120,
        watched.watching,
        holds_gpu=True,
    ),
    Check(
        "energy",
        f"joules {sensors.LEAST_RATIO} to {sensors.MOST_RATIO} of power times time; "
        f"{sensors.FEWEST_CHANGES} changes in {sensors.LOADED_S:g} s",
        60,
        sensors.energy,
        rehearsed=False,
        holds_gpu=True,
    ),
    Check(
        "host-clock",
        f"within 0.2 ms of the host's clock, over {clocks.PAUSES} s",
        60,
        clocks.host_clock,
        holds_gpu=True,
    ),
    Check(
        "pcie-counters",
        "counted bytes 0.9 to 1.5 times the copied bytes, wraps undone",
        60,
        sensors.pcie_counters,
        rehearsed=False,
        holds_gpu=True,
    ),
    Check(
        "nccl-one-rank",
        "strategies verified; version, network and channels in NCCL's log; timing, flight recorder and graph work",
        200,
        nccl.one_rank,
    ),
    Check(
        "loaded",
        f"MFU {launches.LEAST_MFU:.0%} to {launches.MOST_MFU:.0%}; the second and third launch less than "
        f"{launches.MOST_SPREAD:.0%} apart",
        300,
        launches.loaded,
    ),
    Check(
        "profiler",
        f"kernels on one stream take at most {launches.MOST_OF_PROFILED:.0%} of the profiled step, and at least "
        f"{launches.LEAST_OF_MEASURED:.0%} of a measured step",
        150,
        launches.profiled,
    ),
    Check(
        "peak-memory",
        f"the same peak with and without the norm of step 0; within {memory.MARGIN:.0%} of a bare loop",
        200,
        memory.peaks,
    ),
    Check("strategies", "every strategy, gloo on 2 ranks of one GPU: verified", 300, launches.strategies),
    Check("out-of-memory", "status oom; the next launch runs", 120, faults.out_of_memory),
    Check(
        "hang",
        f"hung after {faults.DEADLINE_S:g} s, names rank {faults.STUCK_RANK}; the next launch runs",
        120,
        faults.hang,
    ),
    Check(
        "turns",
        f"6 cases in one launch, gloo on 2 ranks: verified; two copies less than {launches.MOST_APART:.0%} apart "
        "(processes without MPS share a GPU by time slices)",
        200,
        launches.in_turns,
    ),
    Check(
        "compiled", "the second compiled launch is shorter than the first; steps are not slower", 300, launches.compiled
    ),
    Check(
        "gloo-collectives",
        "every operation right, alone and together, gloo on CUDA; plausible bus bandwidth",
        200,
        collectives.gloo_collectives,
    ),
    Check(
        "sampling",
        f"the sampler uses less than {sensors.MOST_CPU:.0%} of a core and misses less than {sensors.MOST_MISSED:.0%} "
        "of its readings",
        120,
        sensors.sampling,
    ),
    Check(
        "ab",
        f"two equal variants are interleaved, gloo on 2 ranks each: less than {launches.MOST_APART:.0%} apart",
        300,
        sides.equal_sides,
    ),
    Check("algorithms", "custom algorithms under ddp, fsdp and tp, gloo on CUDA: verified", 300, launches.algorithms),
    Check(
        "nccl-strategies",
        SHARED + "every strategy verified",
        300,
        collectives.nccl_strategies,
        rehearsed=False,
        environment=collectives.SHARING,
    ),
    Check(
        "nccl-algorithms",
        SHARED + "custom algorithms verified",
        300,
        collectives.nccl_algorithms,
        rehearsed=False,
        environment=collectives.SHARING,
    ),
    Check(
        "nccl-collectives",
        SHARED + "every operation right, alone and together; plausible bus bandwidth",
        200,
        collectives.nccl_collectives,
        rehearsed=False,
        environment=collectives.SHARING,
    ),
)
