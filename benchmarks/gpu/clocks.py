"""The step clock against work of known length."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu.check import Outcome, Target, check
from parabench.machine import accelerator
from parabench.machine.accelerator import clock_of, elapsed_s
from parabench.probes.step_clock import MARKS, StepClock

CALIBRATION_CYCLES = 200_000_000
LENGTHS_S = (0.001, 0.01, 0.1)
STEPS = 10
# Against CUDA's own events; a step also holds five marks.
AGREE, MARKS_S = 0.001, 2e-5
PAUSES = 10


def spinner(device: torch.device) -> Callable[[float], None]:
    """Return a function that keeps the device busy for so many seconds: on CUDA a kernel that spins."""
    if device.type == "cpu":

        def spin(seconds: float) -> None:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                pass

        return spin
    torch.cuda.set_device(device)
    now = clock_of(device)
    for _ in range(2):  # the first loads the module and raises the clocks
        begin = now()
        torch.cuda._sleep(CALIBRATION_CYCLES)
        end = now()
        torch.cuda.synchronize(device)
    hertz = CALIBRATION_CYCLES / elapsed_s(begin, end)
    return lambda seconds: torch.cuda._sleep(int(seconds * hertz))


@check("step-clock", "steps of 1, 10 and 100 ms within 0.1% of CUDA's events, and 20 us", 60, holds_gpu=True)
def step_clock(target: Target) -> Outcome:
    """Compare steps that hold one spinning kernel each with CUDA's own events around the kernel."""
    spin, now, errors = spinner(target.device), clock_of(target.device), {}
    with tempfile.TemporaryDirectory() as folder:
        for length_s in LENGTHS_S[: 2 if target.is_cpu else None]:
            clock = StepClock(Path(folder) / f"marks{length_s}", STEPS, target.device)
            pairs = []
            for _ in range(STEPS):
                clock.mark()
                begin = now()
                spin(length_s)
                pairs.append((begin, now()))
                for _ in range(MARKS - 1):
                    clock.mark()
            clock.finish()
            ours = statistics.median(b - a for a, b in itertools.pairwise(clock.begins()))
            errors[length_s] = ours / statistics.median(elapsed_s(*pair) for pair in pairs) - 1
    text = ", ".join(f"{length_s * 1e3:g} ms {error:+.3%}" for length_s, error in errors.items())
    passed = all(-AGREE < error < AGREE + MARKS_S / length_s for length_s, error in errors.items())
    return Outcome.judged(text, passed or target.is_cpu, errors={str(key): value for key, value in errors.items()})


@check("host-clock", f"within 0.2 ms of the host's clock, over {PAUSES} s", 60, holds_gpu=True)
def host_clock(target: Target) -> Outcome:
    """Check that marks of an idle device are on the host's clock, after a pause and some seconds later."""
    pauses, pause_s = (3, 0.01) if target.is_cpu else (PAUSES, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        clock = StepClock(Path(folder) / "marks", pauses, target.device)
        expected = []
        for _ in range(pauses):
            accelerator.synchronize(target.device)
            time.sleep(pause_s)
            expected.append(time.perf_counter())
            for _ in range(MARKS):
                clock.mark()
        clock.finish()
        late_s = [seen - true for seen, true in zip(clock.begins(), expected, strict=False)]
        numbers = clock.moments.numbers()
    drift = numbers.get("device_clock_drift")
    return Outcome.judged(
        f"marks of an idle device are {min(late_s) * 1e6:.0f} to {max(late_s) * 1e6:.0f} us after the host's; drift "
        f"{'unknown' if drift is None else f'{drift * 1e6:+.1f} us/s'} over {pauses * pause_s:g} s",
        (min(late_s) > -2e-4 and max(late_s) < 2e-3 and statistics.median(late_s) < 2e-4) or target.is_cpu,
        **numbers,
    )
