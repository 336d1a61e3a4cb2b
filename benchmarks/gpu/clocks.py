"""The step clock against kernels of known length, and the cost of watching."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.check import Check, Seen
from parabench.probes.step_clock import MARKS, StepClock

CALIBRATION_CYCLES = 200_000_000
LENGTHS_S = (0.001, 0.01, 0.1)
STEPS = 10
# Of a kernel that is told to spin for so many cycles, at a clock that is steady by then.
AGREE = 0.001
LAG_STEPS = 20


def step_clock(device: torch.device) -> Seen:
    """Steps that hold one spinning kernel each: what the marks say of them, against CUDA's own events."""
    hertz = _cycles_per_second(device)
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        for length_s in LENGTHS_S:
            clock = StepClock(Path(folder) / f"marks{length_s}", STEPS, device)
            pairs = []
            for _ in range(STEPS):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                clock.mark()
                begin.record()
                torch.cuda._sleep(int(length_s * hertz))
                end.record()
                for _ in range(MARKS - 1):
                    clock.mark()
                pairs.append((begin, end))
            clock.finish()
            begins = clock.begins()
            ours = statistics.median(b - a for a, b in itertools.pairwise(begins))
            theirs = statistics.median(a.elapsed_time(b) for a, b in pairs) / 1e3
            errors[length_s] = ours / theirs - 1
    said = ", ".join(f"{length_s * 1e3:g} ms {error:+.3%}" for length_s, error in errors.items())
    # A step is longer than its kernel by what five marks take on the device.
    passed = all(-AGREE < error < AGREE + 2e-5 / length_s for length_s, error in errors.items())
    return Seen.judged(said, passed, errors={str(key): value for key, value in errors.items()})


def _cycles_per_second(device: torch.device) -> float:
    torch.cuda.set_device(device)
    for _ in range(2):  # the first loads the module and wakes the clocks
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.cuda._sleep(CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
    return CALIBRATION_CYCLES / (begin.elapsed_time(end) / 1e3)


def host_clock(device: torch.device) -> Seen:
    """Marks on the host's clock: a kernel enqueued behind a pause of the host begins after it, also a minute later."""
    with tempfile.TemporaryDirectory() as folder:
        clock = StepClock(Path(folder) / "marks", LAG_STEPS, device)
        expected = []
        for _ in range(LAG_STEPS):
            torch.cuda.synchronize(device)
            time.sleep(1.0)
            expected.append(time.perf_counter())
            for _ in range(MARKS):
                clock.mark()
        clock.finish()
        late_s = [seen - true for seen, true in zip(clock.begins(), expected, strict=False)]
        numbers = clock.moments.numbers()
    said = f"marks of an idle device are {min(late_s) * 1e6:.0f} to {max(late_s) * 1e6:.0f} us after the host's"
    drift = numbers.get("device_clock_drift")
    return Seen.judged(
        f"{said}; drift {'unknown' if drift is None else f'{drift * 1e6:+.1f} us/s'} over {LAG_STEPS} s",
        min(late_s) > -2e-4 and max(late_s) < 2e-3 and statistics.median(late_s) < 2e-4,
        **numbers,
    )


CHECKS = (
    Check(
        "step-clock", "steps of 1, 10 and 100 ms within 0.1 % of CUDA's events, and 20 us for the marks", 60, step_clock
    ),
    Check("host-clock", "within 0.2 ms of the host's clock, over 20 s", 90, host_clock),
)
